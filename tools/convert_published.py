"""Convert the result archives that MLBench published in 2020 and 2021 into the two tables of the package.

    python tools/convert_published.py FOLDER mlbench/analysis/archives

FOLDER is a checkout of github.com/mlbench/mlbench-results, commit 2160872. An archive is a zip of JSON lists
of {date, value, cumulative}, one a metric and rank, and a line of text once the goal was reached.
"""

import hashlib
import json
import re
import sys
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FOLDERS = {  # folder: task, and how gradients were combined
    "cifar10-resnet20-all-reduce": ("resnet20", "all-reduce"),
    "cifar10-resnet20-ddp": ("resnet20", "ddp"),
    "wikitext2-lstm-all-reduce": ("awdlstm", "all-reduce"),
    "wmt16-gnmt-all-reduce": ("gnmt", "all-reduce"),
    "wmt17-transformer-all-reduce": ("transformer", "all-reduce"),
    "backend_benchmark": ("allreduce", "all-reduce"),
}
METRICS = {"resnet20": "Prec@1", "awdlstm": "Perplexity", "gnmt": "BLEU-Score", "transformer": "BLEU-Score"}
HARDWARE = "gcp_n1_t4"  # the results' README and blog, 2020-21
TORCH = {"backend_benchmark": "1.5", "torch-1.7.0": "1.7.0"}  # blog of 2020-09-08; the folder's name
NAME = re.compile(r"metrics_(?P<backend>[a-z]+)(?P<gpu>-gpu)?-(?P<workers>\d+)\.zip")
RESULT = re.compile(r"result_(?P<metric>.+) @ (?P<rank>\d+)\.json")
RESOURCE = re.compile(r".+-(?P<rank>\d+)_(?P<metric>cpu|memory|network_in|network_out)\.json")
GOAL = re.compile(
    r"(?:(?P<percent>[\d.]+)% Top 1 .*|.* of (?P<target>[\d.]+)) reached in (?P<seconds>[\d.]+) s"
)
TENSOR = re.compile(r"tensor\((?P<value>[-\d.e]+), device='cuda:\d+'\)")  # how the Transformer logged losses

RUNS = pa.schema(
    [
        ("path", pa.string()),  # inside the collection
        ("sha256", pa.string()),  # of the zip
        ("task", pa.string()),
        ("sync", pa.string()),
        ("backend", pa.string()),
        ("device", pa.string()),
        ("workers", pa.int16()),
        ("hardware", pa.string()),
        ("torch", pa.string()),
        ("goal_metric", pa.string()),  # null: the archive holds no result
        ("goal_target", pa.float64()),
        ("time_to_goal_s", pa.float64()),
        ("caveats", pa.list_(pa.string())),
    ]
)
CURVES = pa.schema(
    [
        ("path", pa.dictionary(pa.int16(), pa.string())),
        ("metric", pa.dictionary(pa.int16(), pa.string())),  # the original's name
        ("rank", pa.int16()),
        ("time", pa.timestamp("ms", "UTC")),
        ("value", pa.float64()),
        ("cumulative", pa.bool_()),
    ]
)


def convert(folder: Path, target: Path) -> tuple[int, int]:
    """Write runs.parquet and curves.parquet; return how many archives and how many values they hold."""
    runs, curves = [], []
    for path in sorted(folder.rglob("metrics_*.zip")):
        run, points = _archive(path, path.relative_to(folder).as_posix())
        runs.append(run)
        curves += points
    for run in runs:
        copies = [other["path"] for other in runs if other["sha256"] == run["sha256"] and other is not run]
        if copies:
            run["caveats"].append(f"the same run was published again as {', '.join(copies)}")
    target.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(runs, RUNS), target / "runs.parquet", compression="zstd")
    columns = {name: [point[i] for point in curves] for i, name in enumerate(CURVES.names)}
    table = pa.table(columns, schema=CURVES)
    pq.write_table(table, target / "curves.parquet", compression="zstd", compression_level=19)
    return len(runs), len(curves)


def _archive(path: Path, name: str) -> tuple[dict[str, Any], list[tuple]]:
    task, sync = FOLDERS[path.parent.name]
    named = NAME.fullmatch(path.name)
    assert named, f"{name} is not named metrics_BACKEND-WORKERS.zip"
    points: list[tuple] = []
    official = None
    with zipfile.ZipFile(path) as archive:
        for file in sorted(archive.namelist()):
            if file == "official_result.txt":
                official = GOAL.match(archive.read(file).decode())
                assert official, f"{name}: {file} has no goal"
                continue
            series = RESULT.fullmatch(file) or RESOURCE.fullmatch(file)
            assert series, f"{name}: {file} is no result of MLBench"
            for entry in json.loads(archive.read(file)):
                time = datetime.fromisoformat(entry["date"])
                value = _number(entry["value"])
                key = (name, series["metric"], int(series["rank"]))
                points.append((*key, time, value, entry["cumulative"]))
    workers = 1 + max(rank for _, metric, rank, *_ in points if metric in ("train_loss", "val_avg_time"))
    assert workers == int(named["workers"]), f"{name} holds {workers} workers"
    device = "cpu" if task == "allreduce" and not named["gpu"] else "cuda"
    run = {
        "path": name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "task": task,
        "sync": sync,
        "backend": named["backend"],
        "device": device,
        "workers": workers,
        "hardware": HARDWARE,
        "torch": next(TORCH[part] for part in path.parts if part in TORCH),
        "goal_metric": METRICS[task] if official else None,
        "goal_target": float(official["percent"] or official["target"]) if official else None,
        "time_to_goal_s": float(official["seconds"]) if official else None,
        "caveats": _caveats(task, device, workers, {metric for _, metric, *_ in points}),
    }
    return run, points


def _number(value: str) -> float:
    tensor = TENSOR.fullmatch(value)
    return float(tensor["value"] if tensor else value)


def _caveats(task: str, device: str, workers: int, metrics: set[str]) -> list[str]:
    """Return why the numbers are not what their names say; read in the original's code or in the archives."""
    caveats = ["one run without repetition: how much of it is chance is not known"]
    caveats.append("hyper-parameters, seed and hardware are not in the archive")
    if task == "allreduce":
        return [*caveats, "no warm-up, no barrier between calls; each value is one rank's mean of 100 calls"]
    if "TotalCumulativeTrainTime" not in metrics:
        return [*caveats, "the archive holds no result: whether the run had ended is not known"]
    caveats.append("the time is rank 0's inside batches, without start-up, validation and waiting for data")
    if device == "cuda":
        caveats.append(
            "steps were timed without waiting for the GPU, so their seconds stand under neighbours"
        )
    if workers > 1 and "global_cum_agg" not in metrics:
        caveats.append("communication overlapped with the backward pass and was not measured")
    elif workers == 1 and "global_cum_agg" in metrics:
        caveats.append("one worker has nobody to communicate with: its communication is other work")
    elif workers > 1:
        caveats.append("communication is the aggregation of gradients with its copies and divisions")
    missing = [step for step in ("batch_load", "comp_metrics") if f"global_cum_{step}" not in metrics]
    if missing:
        caveats.append(f"not timed: {' and '.join(missing)}")
    if task in ("gnmt", "transformer"):
        caveats.append("BLEU is the mean over batches of 64 sentences of the test set, not the corpus BLEU")
    return caveats


if __name__ == "__main__":
    archives, values = convert(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{archives} archives, {values:,} values")

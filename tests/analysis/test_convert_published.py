"""The converter of MLBench's archives: every value of a zip is in the tables, exactly."""

import json
import runpy
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
from conftest import ROOT

convert = runpy.run_path(str(ROOT / "tools" / "convert_published.py"))["convert"]


def write(path: Path, files: dict[str, list[str] | str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as target:
        for name, content in files.items():
            if not isinstance(content, str):
                entries = [
                    {"date": f"2020-12-08T10:00:0{i}.5Z", "value": value, "cumulative": False}
                    for i, value in enumerate(content)
                ]
                content = json.dumps(entries)
            target.writestr(name, content)


def test_a_training_run_and_its_losses_that_are_texts_of_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "torch-1.7.0" / "nlp" / "translation" / "wmt17-transformer-all-reduce"
    files: dict[str, list[str] | str] = {
        "result_train_loss @ 0.json": ["2.5", "1.25"],
        "result_train_loss @ 1.json": ["2.75"],
        "result_val_loss @ 1.json": ["tensor(5.7223, device='cuda:0')"],
        "result_TotalCumulativeTrainTime @ 0.json": ["12.3456"],
        "official_result.txt": "Validation BLEU-Score of 25 reached in 12.346 seconds, Compute: 1 seconds",
    }
    write(folder / "metrics_nccl-2.zip", files)
    write(folder.parent / "wmt16-gnmt-all-reduce" / "metrics_nccl-2.zip", files)
    assert convert(tmp_path, tmp_path / "tables") == (2, 10)
    _, run = pq.read_table(tmp_path / "tables" / "runs.parquet").to_pylist()
    assert run["path"] == "torch-1.7.0/nlp/translation/wmt17-transformer-all-reduce/metrics_nccl-2.zip"
    assert (run["task"], run["backend"], run["workers"], run["torch"]) == ("transformer", "nccl", 2, "1.7.0")
    assert (run["goal_metric"], run["goal_target"], run["time_to_goal_s"]) == ("BLEU-Score", 25.0, 12.346)
    assert any("published again as" in caveat for caveat in run["caveats"])
    rows = pq.read_table(tmp_path / "tables" / "curves.parquet").to_pylist()
    losses = [
        (row["rank"], row["value"])
        for row in rows
        if row["path"] == run["path"] and row["metric"] in ("train_loss", "val_loss")
    ]
    assert losses == [(0, 2.5), (0, 1.25), (1, 2.75), (1, 5.7223)]
    assert rows[0]["time"].isoformat() == "2020-12-08T10:00:00.500000+00:00"


def test_a_benchmark_of_backends_and_its_node_metrics(tmp_path: Path) -> None:
    files: dict[str, list[str] | str] = {
        "result_val_avg_time @ 0.json": ["0.5"],
        "result_val_avg_time @ 1.json": ["0.5"],
        "gloo-2-mlbench-worker-someone-9-1_cpu.json": ["0.25"],
    }
    write(tmp_path / "backend_benchmark" / "metrics_gloo-gpu-2.zip", files)
    assert convert(tmp_path, tmp_path / "tables") == (1, 3)
    (run,) = pq.read_table(tmp_path / "tables" / "runs.parquet").to_pylist()
    assert (run["task"], run["device"], run["goal_metric"]) == ("allreduce", "cuda", None)
    rows = pq.read_table(tmp_path / "tables" / "curves.parquet").to_pylist()
    assert ("cpu", 1, 0.25) in [(row["metric"], row["rank"], row["value"]) for row in rows]

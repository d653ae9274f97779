"""Zip files in the layouts that MLBench published, with numbers chosen here."""

import json
import shutil
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BEGUN = 1_607_424_776.5  # s since 1970, 2020-12-08
EPOCH_S = 20.0  # s between two validations, on the wall
STEPS = {  # s an epoch of rank 0; rank r takes r seconds more in each
    "batch_load": 0.25, "init": 0.5, "fwd_pass": 3.0, "comp_loss": 0.125, "backprop": 4.0, "agg": 2.0,
    "opt_step": 1.0, "comp_metrics": 0.75, "end": 0.0625,
}  # fmt: skip


def entries(values: Sequence[float | str], *, every: float = EPOCH_S) -> str:
    """Return a JSON list as the dashboard wrote it, one value every so many seconds."""
    return json.dumps([_entry(BEGUN + every * (i + 1), value) for i, value in enumerate(values)])


def _entry(wall: float, value: float | str) -> dict[str, Any]:
    stamp = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return {"date": stamp, "value": str(value), "cumulative": False}


def training(
    metric: str,
    values: Sequence[float],
    *,
    workers: int,
    official: str | None,
    without: Sequence[str] = (),
    epochs: int | None = None,
) -> dict[str, str]:
    """Return the files of a training run: `official` is its result line without the total and the parts.

    `values` are those of val_global_<metric>, `epochs` their number unless given, `without` steps that the
    task did not time.
    """
    epochs = epochs or len(values)
    steps = {step: seconds for step, seconds in STEPS.items() if step not in without}
    files = {}
    for rank in range(workers):
        for step, seconds in steps.items():
            files[f"result_{step} @ {rank}.json"] = entries([seconds + rank] * epochs)
        total = sum(steps.values()) + len(steps) * rank
        files[f"result_CumulativeTrainTimeEpoch @ {rank}.json"] = entries([total] * epochs)
        files[f"result_train_loss @ {rank}.json"] = entries([2.0, 1.0] * epochs, every=EPOCH_S / 4)
        files[f"result_val_loss @ {rank}.json"] = entries([1.5] * len(values))
    files[f"result_val_global_{metric} @ 0.json"] = entries(values)
    files["result_val_global_loss @ 0.json"] = entries([1.5] * len(values))
    files["run-mlbench-worker-0_cpu.json"] = entries([0.5, 0.75], every=5)
    if official is not None:
        total = epochs * sum(steps.values())
        files["result_TotalCumulativeTrainTime @ 0.json"] = entries([total])
        for step, seconds in steps.items():
            files[f"result_global_cum_{step} @ 0.json"] = entries([epochs * seconds])
        files["official_result.txt"] = f"{official} reached in {total:.3f} seconds, Compute: 1.5 seconds"
    return files


def backends(workers: int, *, cuda: bool) -> dict[str, str]:
    """Return the files of a backend benchmark: sizes 1, 1 and 100 in two types, rank 1 ms later each."""
    files = {}
    for rank in range(workers):
        columns = {
            "tensor_size": [1, 1, 1, 1, 100, 100],
            "dtype": [32, 16, 32, 16, 32, 16],
            "cuda": [int(cuda)] * 6,
            "avg_time": [s + 0.001 * rank for s in (0.25, 0.5, 0.75, 1.0, 2.0, 4.0)],
        }
        for name, values in columns.items():
            files[f"result_val_{name} @ {rank}.json"] = entries(values)
    return files


def with_store(output_root: Path, empty_store: Path) -> Path:
    """Make a folder of runs with an MLflow store that is empty, and return it; MLflow takes seconds."""
    output_root.mkdir(exist_ok=True)
    shutil.copy(empty_store, output_root / "mlflow.db")
    return output_root


def write(path: Path, files: dict[str, str]) -> Path:
    """Write the zip file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, text in files.items():
            target.writestr(name, text)
    return path

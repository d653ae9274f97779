"""One run as a zip file: MLBench's download layout, so that its readers go on working, and all of ours.

- `result_<metric> @ <rank>.json`, `official_result.txt`: the original's (exchange.layout).
- record.json, events.jsonl, config.yaml, provenance.json: ours, from which the run can be imported again.
- mllog.txt: the course of the run as MLPerf's log lines; it is no MLPerf submission.

Nothing in it holds a password. Equal runs make equal zips, bit by bit.
"""

import json
import math
import os
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from mlbench.exchange import layout, mllog
from mlbench.exchange.layout import Point, file_name
from mlbench.experiment import events, record
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record
from mlbench.tracking.mapping import cleaned
from mlbench.tracking.official_result import official_result

OF_EXPORT = (
    "record.json", events.NAME, "config.yaml", "provenance.json", "mllog.txt", layout.OFFICIAL,
)  # fmt: skip
STAMP = (1980, 1, 1, 0, 0, 0)  # of every entry: the zip format's first day, so that equal runs are equal zips
PROVENANCE = (
    "command", "mlbench", "source", "key", "seed", "deviations", "caveats", "warnings", "nodes", "software",
    "data_manifest", "ray",
)  # fmt: skip


def export(folder: Path, target: Path) -> Path:
    """Write a run's folder to the zip file `target`; UserError if it exists or cannot be written."""
    found = Record.model_validate(cleaned(record.load(folder / "record.json").model_dump(mode="json")))
    log = [cleaned(event) for event in events.read(folder / events.NAME)]
    files = _ours(found, log)
    files |= {file_name(*place): layout.written(points) for place, points in series(found, log).items()}
    line = official_result(found)
    if line is not None:
        files[layout.OFFICIAL] = line
    unfinished = target.with_name(f".{target.name}.part")
    try:
        if target.exists():
            raise UserError(f"{target} exists already", hint="give another name with to=")
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as opened:
            for name, text in sorted(files.items()):
                opened.writestr(zipfile.ZipInfo(name, STAMP), text.encode(), zipfile.ZIP_DEFLATED)
        os.replace(unfinished, target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}", hint="give another place: to=") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def _ours(found: Record, log: list[dict[str, Any]]) -> dict[str, str]:
    provenance = {name: value for name, value in found.model_dump(mode="json").items() if name in PROVENANCE}
    return {
        "record.json": found.model_dump_json(indent=2),
        events.NAME: "".join(json.dumps(event, allow_nan=False) + "\n" for event in log),
        "config.yaml": yaml.safe_dump(found.experiment, sort_keys=False),
        "provenance.json": json.dumps(provenance, indent=2, allow_nan=False),
        "mllog.txt": mllog.text(found, log),
    }


def series(found: Record, log: list[dict[str, Any]]) -> layout.Series:
    """Return what the original would have logged: steps of every rank between two validations, and totals.

    A step's seconds are summed over the batches since the validation before, as the original summed them over
    an epoch; with several validations an epoch there are as many sums. Totals are rank 0's, after the goal.
    """
    result: layout.Series = {}
    totals: dict[str, float] = {}
    wall = datetime.fromisoformat(found.ended_at).timestamp()
    for event in log:
        if event["key"] != "validation":
            continue
        validation = event["value"]
        wall = validation["wall"]
        for name, value in _losses(validation).items():
            result.setdefault((name, 0), []).append(Point(wall, value))
        for rank, segment in enumerate(event["metadata"]["segments"]):
            for step, seconds in _steps(segment["phases"]).items():
                result.setdefault((step, rank), []).append(Point(wall, seconds))
                if rank == 0:
                    totals[step] = totals.get(step, 0.0) + seconds
    if not totals and found.phases:  # imported: the record alone has them
        totals = {step: found.phases[phase].mean for step, phase in layout.STEPS.items()}
        totals[layout.OF_EPOCH] = found.train_time or 0.0
    if found.status == "goal_reached" and totals:
        result[layout.TOTAL, 0] = [Point(wall, totals[layout.OF_EPOCH])]
        result |= {(f"global_cum_{step}", 0): [Point(wall, seconds)] for step, seconds in totals.items()}
    return result | _collectives(found)


def _losses(validation: dict[str, Any]) -> dict[str, float]:
    values = {f"val_global_{layout.METRICS.get(n, n)}": v for n, v in validation["metrics"].items()}
    values["train_loss"] = validation["train_loss"]
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _steps(phases: dict[str, float]) -> dict[str, float]:
    """Return one segment's seconds by the original's names; its training time had no waiting for data."""
    steps = {step: phases[phase] for step, phase in layout.STEPS.items()}
    steps[layout.OF_EPOCH] = math.fsum(s for step, s in steps.items() if step != "batch_load")
    return steps


def _collectives(found: Record) -> layout.Series:
    """Return the all-reduce times of task 0 as its original logged them; seconds, the slowest rank's mean."""
    wall = datetime.fromisoformat(found.ended_at).timestamp()
    bits = {"float32": 32.0, "float16": 16.0}
    rows = [
        row
        for row in found.table
        if row.get("kind") == "times" and row["collective"] == "all_reduce" and row["dtype"] in bits
        and row["mean_s"] is not None
    ]  # fmt: skip
    if not rows:
        return {}
    columns = {
        "val_tensor_size": [float(row["elements"]) for row in rows],
        "val_dtype": [bits[row["dtype"]] for row in rows],
        "val_cuda": [float(row["device"] == "cuda") for row in rows],
        "val_avg_time": [row["mean_s"] for row in rows],
    }
    return {(name, 0): [Point(wall, value) for value in values] for name, values in columns.items()}

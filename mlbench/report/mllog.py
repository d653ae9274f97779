"""Write a run as lines of MLPerf's log format, `:::MLLOG {json}`, for MLPerf's tools.

Keys and fields are those of mlcommons/logging (mlperf_logging.mllog.constants, 4.1). Percentages and BLEU are
written as fractions, as MLPerf does. The log of a run of gnmt, transformer or resnet50 at official scale that
reached its goal passes `mlperf_logging.compliance_checker --ruleset 0.7.0` (docs/mlperf.md). The first line
states that this is no submission: clock and data are mlbench's.
"""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from mlbench.config.errors import UserError
from mlbench.config.experiment import TrainingConfig
from mlbench.datasets import arrow
from mlbench.record.record import Record
from mlbench.tasks import registry
from mlbench.tasks.rcp import benchmark, target

NOTICE = "# Written by mlbench. This is not an MLPerf submission."
EVALUATED = ("valid", "val", "test")  # splits on which tasks validate, which a vocabulary is not
STATUS = "research"  # of MLPerf's words for availability, the one for what is neither sold nor rented


def text(record: Record, log: list[dict[str, Any]]) -> str:
    """Return the lines in the order of their times.

    - init: from the command to the first access to data, when mlbench's clock starts.
    - run: from there to the last validation. MLPerf's run_start is the first access to data, too.
    - An epoch here is the part between two validations, with epoch_num the epochs done at its end.
    """
    start = datetime.fromisoformat(record.started_at).timestamp()
    validations = [event for event in log if event["key"] == "validation"]
    first = next((e["metadata"]["started_at"] for e in validations), start + (record.startup_time or 0.0))
    task = record.experiment.plain()["task"]
    lines = [_line(start, key, value, **metadata) for key, value, metadata in _header(record)]
    lines.append(_line(start, "init_start", None, "INTERVAL_START"))
    lines.append(_line(first, "init_stop", None, "INTERVAL_END"))
    lines.append(_line(first, "run_start", None, "INTERVAL_START"))
    since = first
    for event in validations:
        lines += _validated(task, event, since=since)
        since = event["value"]["wall"]
    status = "success" if record.status == "goal_reached" else "aborted"  # MLPerf has no other
    stopped = since if validations else record.end_time
    lines.append(
        _line(stopped, "run_stop", None, "INTERVAL_END", status=status, mlbench_status=record.status)
    )
    return "\n".join([NOTICE, *lines]) + "\n"


def hyperparameters(record: Record) -> dict[str, Any]:
    """Return the global batch size and, if MLPerf has the task, its hyper-parameters by MLPerf's keys."""
    task = record.experiment.plain()["task"]
    config = registry.load(task["name"]).Config.model_validate(task)
    if not isinstance(config, TrainingConfig):
        return {}
    values = {"global_batch_size": config.global_batch(record.workers)}
    mlperf = registry.mlperf(task["name"])
    if mlperf is None:
        return values
    steps = sum(
        validation.step / validation.epoch for validation in record.validations[-1:] if validation.epoch
    )
    return values | mlperf.hyperparameters(config, workers=record.workers, steps_per_epoch=round(steps))


def _header(record: Record) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield what precedes the run: key, value, metadata."""
    experiment = record.experiment.plain()
    mlperf = registry.mlperf(experiment["task"]["name"])
    why_open = [f"{deviation.field} differs" for deviation in record.deviations]
    why_open += [mlperf.OPEN] if mlperf and mlperf.OPEN else []
    why_open += [] if experiment["division"]["name"] == "closed" else ["mlbench's division is open"]
    yield "submission_benchmark", benchmark(experiment), {}
    yield "submission_org", "mlbench", {}
    nodes = max(1, len(record.nodes))
    yield "submission_platform", f"{nodes} x {experiment['hardware']['name']}, {record.workers} workers", {}
    yield "submission_division", "open" if why_open else "closed", {"reasons": why_open} if why_open else {}
    yield "submission_status", STATUS, {}
    yield "cache_clear", False, {}  # the page cache is left as it is
    yield "seed", record.seed, {}
    for key, value in hyperparameters(record).items():
        yield (key, *value) if isinstance(value, tuple) else (key, value, {})
    train, evaluation = _samples(record)
    yield "train_samples", train, {}
    yield "eval_samples", evaluation, {}
    goal = target(experiment)
    if goal is not None:
        percent = _percent(experiment["task"])
        yield "mlbench_goal", goal / percent, {"direction": experiment["task"]["direction"]}


def _samples(record: Record) -> tuple[int | None, int | None]:
    """Return the training and validation samples.

    They are the rows of the data set if it is unchanged since the training. Otherwise they are the samples of
    an epoch, and None.
    """
    folder = Path(record.experiment.data_root) / record.experiment.task.dataset
    try:
        if arrow.manifest_hash(folder) == record.data_hash:
            rows = Counter[str]()
            for name, split in arrow.read_manifest(folder)["splits"].items():
                rows[name.partition("-")[0]] += split["rows"]  # of ImageNet, train-0000 and others
            return rows.get("train"), next((rows[name] for name in EVALUATED if name in rows), None)
    except (OSError, UserError):
        pass
    return round(record.samples / record.epochs) if record.epochs else None, None


def _percent(task: dict[str, Any]) -> int:
    """Return the divisor of mlbench's metric into MLPerf's, in which accuracy and BLEU end at 1."""
    return 100 if task["metric_unit"] == "%" or task["metric"] == "bleu" else 1


def _validated(task: dict[str, Any], event: dict[str, Any], *, since: float) -> Iterator[str]:
    """Yield the lines of one validation and of the training before it."""
    validation = event["value"]
    stop, epoch = validation["wall"], validation["epoch"]
    spent = max(
        (rank["outside"].get("validation", 0.0) for rank in event["metadata"]["phase_times"]), default=0.0
    )
    begin = max(since, stop - spent)
    value = validation["metrics"].get(task["metric"])
    yield _line(since, "epoch_start", None, "INTERVAL_START", epoch_num=epoch)
    yield _line(begin, "epoch_stop", None, "INTERVAL_END", epoch_num=epoch)
    yield _line(begin, "eval_start", None, "INTERVAL_START", epoch_num=epoch)
    if value is not None:
        key = "eval_accuracy" if task["direction"] == "max" else "eval_error"
        yield _line(stop, key, value / _percent(task), epoch_num=epoch, metric=task["metric"])
    yield _line(stop, "eval_stop", None, "INTERVAL_END", epoch_num=epoch)


def _line(wall: float, key: str, value: Any, kind: str = "POINT_IN_TIME", **metadata: Any) -> str:
    entry = {
        "namespace": "mlbench",
        "time_ms": round(wall * 1000),
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": {"file": "mlbench/report/mllog.py", "lineno": 0} | metadata,
    }
    return f":::MLLOG {json.dumps(entry, allow_nan=False)}"

"""A record as a run on two workers leaves it, for the tests of what people read."""

import math
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from scripted import experiment as composed

from mlbench.record.build_record import accuracy_after
from mlbench.record.cost import cost
from mlbench.record.record import RankStats, Record


def record(*overrides: str, **changes: Any) -> Record:
    """Return the record of a resnet20 mini run that reached its goal, with `changes` to its fields.

    `overrides` are the experiment's, e.g. "hardware=gcp_n1_t4".
    """
    experiment = composed(*overrides)
    phases = {
        "data_wait": RankStats(min=0.2, mean=0.4, max=0.6),
        "forward": RankStats(min=14.9, mean=15.0, max=15.1),
        "loss": RankStats(min=0.5, mean=0.5, max=0.5),
        "backward": RankStats(min=18.0, mean=18.0, max=18.0),
        "wait": RankStats(min=1.0, mean=2.0, max=3.0),
        "transfer": RankStats(min=3.0, mean=3.0, max=3.0),
        "optimizer": RankStats(min=1.0, mean=1.0, max=1.0),
        "metrics": RankStats(min=0.1, mean=0.1, max=0.1),
    }
    values: dict[str, Any] = {
        "run_id": "2026-11-21T034501-123-resnet20-w2-7",
        "key": "0123456789abcdef",
        "mlbench": "0.1.0",
        "command": " ".join(["python -m mlbench.run", *overrides]),
        "experiment": experiment.plain(),
        "deviations": [],
        "eligible": False,
        "official_reasons": ["scale=mini"],
        "status": "goal_reached",
        "goal": experiment.target,
        "error": None,
        "seed": 7,
        "workers": experiment.workers,
        "oversubscribed": False,
        "caveats": [],
        "warnings": [],
        "started_at": "2026-11-21T03:45:01.123+00:00",
        "ended_at": "2026-11-21T03:46:13.456+00:00",
        "wall": 72.333,
        "startup": {"command": 1.2, "cluster": 5.4, "scheduling": 2.2, "imports": 3.9},
        "startup_time": 12.7,
        "time_to_accuracy": 48.25,
        "accuracy_after_time": 95.28,
        "best": 95.28,
        "train_time": 39.9,
        "epochs": 2.0,
        "steps": 46,
        "samples": 2876,
        "sample_unit": "images",
        "samples_per_s": 71.9,
        "samples_per_s_per_worker": 35.95,
        "phases": phases,
        "overlapped_communication": RankStats(min=2.0, mean=3.0, max=4.0),
        "exposed_communication_share": 0.125,
        "outside": {"validation": RankStats(min=6.0, mean=6.2, max=6.4), "report": RankStats.of([0.75])},
        "step_s": {"p50": 0.152, "p95": 0.181, "p99": 0.25},
        "flops_per_sample": 6.1e7,
        "model_flops_per_s": 4.386e9,
        "mfu": None,
        "cost": None,
        "validations": [
            _validation(1, 81.2, elapsed=24.0, goal_reached=False),
            _validation(2, 95.28, elapsed=48.25, goal_reached=True),
        ],
        "intervals": [],
        "restarts": [],
        "nodes": [{"hostname": "here", "usable_cpus": 2, "threads_per_worker": 1}],
        "software": {},
        "data_hash": None,
        "ray": {},
        "table": [],
    }
    return Record(**values | changes)


def nothing_measured(*overrides: str, **changes: Any) -> Record:
    """Return the record of a run that ended before its first validation."""
    empty: dict[str, Any] = {
        "startup": {"command": 1.2, "cluster": 5.4},
        "startup_time": None,
        "time_to_accuracy": None,
        "accuracy_after_time": None,
        "best": None,
        "train_time": None,
        "epochs": 0.0,
        "steps": 0,
        "samples": 0,
        "samples_per_s": None,
        "samples_per_s_per_worker": None,
        "phases": {},
        "overlapped_communication": None,
        "exposed_communication_share": None,
        "outside": {},
        "step_s": {},
        "flops_per_sample": None,
        "model_flops_per_s": None,
        "validations": [],
        "nodes": [],
    }
    return record(*overrides, **empty | changes)


def save(record: Record, folder: Path) -> Record:
    """Write the record into the folder as `consistent` makes it: no other can be read. Return it."""
    made = consistent(record)
    made.save(folder)
    return made


def consistent(record: Record) -> Record:
    """Return the record with validations, rates and a bill that agree with its status, time and epochs."""
    task, goal = record.experiment.task, record.goal
    last = record.validations[-1] if record.validations else None
    elapsed = 0.0 if last is None else record.time_to_accuracy or last.elapsed
    validations = []
    for validation in record.validations:
        metrics = dict(validation.metrics)
        if goal is not None:
            worse = -5.0 if goal.direction == "max" else 5.0
            reached = validation is last and record.status == "goal_reached"
            metrics[goal.metric] = goal.target + (0.0 if reached else worse)
        change: dict[str, Any] = {"elapsed": validation.elapsed * elapsed / record.validations[-1].elapsed}
        if validation is last:
            change = {"elapsed": elapsed, "epoch": record.epochs, "step": record.steps}
        validations.append(validation.model_copy(update={"metrics": metrics, **change}))
    values = [value for v in validations if (value := v.metrics.get(task.metric)) is not None]
    outside = math.fsum(spread.max for spread in record.outside.values())
    rate = record.samples / (elapsed - outside) if elapsed > outside else None
    begun = datetime.fromisoformat(record.started_at)
    update: dict[str, Any] = {
        "validations": validations,
        "time_to_accuracy": elapsed if record.status == "goal_reached" else None,
        "best": (max if task.direction == "max" else min)(values, default=None),
        "accuracy_after_time": accuracy_after(validations, task, record.status),
        "samples_per_s": rate,
        "samples_per_s_per_worker": rate and rate / record.workers,
        "ended_at": (begun + timedelta(seconds=record.wall)).isoformat(),
    }
    made = record.model_copy(update=update)
    bill = cost(
        record.experiment.hardware,
        record.workers,
        wall_s=record.wall,
        time_to_accuracy_s=made.time_to_accuracy,
    )
    return made.model_copy(update={"cost": bill})


def _validation(epoch: int, value: float, *, elapsed: float, goal_reached: bool) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "step": 23 * epoch,
        "elapsed": elapsed,
        "wall": 1.7e9 + elapsed,
        "train_loss": 0.5,
        "metrics": {"top1_accuracy": value, "loss": 0.6},
        "goal_reached": goal_reached,
    }

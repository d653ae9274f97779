"""A study in MLflow: a parent run with the study's runs as its children.

The parent has the aggregates as metrics whose step is the number of workers, so that MLflow's own charts
draw them over workers, and the report as artifacts. Who writes first, the first child's mirror or the sweep,
makes the parent. MLflow cannot take a metric back: where aggregates have changed, because the study was
extended, a new parent takes over the children and the old one is deleted.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mlbench import speedup, study
from mlbench.record import Record
from mlbench.speedup import Estimate, Point, Ratio
from mlbench.store.entries import COMPLETE, RUN_ID, Metric
from mlbench.store.ledger import Ledger, open_ledger
from mlbench.study import Study

PARENT = "mlflow.parentRunId"  # tag by which MLflow nests runs
FIELDS = ("task", "scale", "recipe", "backend", "sync", "hardware", "network", "goal")


def parent(ledger: Ledger, output_root: Path, name: str) -> str:
    """Return MLflow's id of a study's parent run, which is made if need be."""
    plan = study.load(study.folder(output_root, name))
    tags = {"study": name, "mlflow.source.type": "LOCAL", "mlflow.source.name": "mlbench.sweep"}
    begun = 0.0
    if plan is not None:
        begun = datetime.fromisoformat(plan.created).timestamp()
        tags["mlflow.note.content"] = plan.question
    return ledger.open_run(_identity(plan, name), name=f"study {name}", begun=begun, tags=tags)


def write(plan: Study, records: Sequence[Record], *, output_root: Path, uri: str, status: str) -> str:
    """Write the parent: aggregates, tags, and the report's files; return its MLflow id.

    `status` is FINISHED, FAILED or KILLED. Raises what MLflow raises, and may then be called again.
    """
    ledger = open_ledger(uri, artifacts=output_root.absolute() / "artifacts")
    assert ledger is not None
    ended = max((datetime.fromisoformat(run.ended_at).timestamp() for run in records), default=0.0)
    metrics = [*aggregates(records, time_ms=round(ended * 1000))]
    run = parent(ledger, output_root, plan.name)
    if _written(ledger, run) - {(m.name, m.step, m.value) for m in metrics}:
        ledger.client.set_tag(run, RUN_ID, f"{_identity(plan, plan.name)} (superseded)")
        run = parent(ledger, output_root, plan.name)
    ledger.log(run, metrics=metrics, tags=tags(plan, records))
    place = study.folder(output_root, plan.name)
    ledger.client.log_artifact(run, str(place / study.PLAN))
    if (place / study.REPORT).is_dir():
        ledger.client.log_artifacts(run, str(place / study.REPORT))
    _adopt(ledger, run, plan)
    ledger.client.set_terminated(run, status=status, end_time=round(ended * 1000))
    ledger.client.set_tag(run, COMPLETE, "true")
    return run


def sync(output_root: Path, uri: str) -> Iterator[str]:
    """Write the parents of all studies below `output_root` that have runs; yield their names.

    Call it after the runs themselves were brought there; raises what MLflow raises.
    """
    for path in sorted(output_root.glob(f"studies/*/{study.PLAN}")):
        plan = study.load(path.parent)
        records = study.records(plan, output_root) if plan else []
        if plan and records:
            write(plan, records, output_root=output_root, uri=uri, status="FINISHED")
            yield plan.name


def tags(plan: Study, records: Sequence[Record]) -> dict[str, str]:
    """Return the parent's tags: what all its runs share, so that two studies compare side by side."""
    found: dict[str, set[str]] = {field: set() for field in FIELDS}
    all_points = speedup.points(records)
    for point in all_points:
        for field in FIELDS:
            found[field].add(str(getattr(point, field) or ""))
    shared = {field: ", ".join(sorted(values)) for field, values in found.items() if any(values)}
    counts = {
        "runs": str(len(records)),
        "reached": str(sum(point.reached for point in all_points)),
        "points": str(len(plan.points)),
        "workers": ", ".join(map(str, sorted({run.workers for run in records}))),
    }
    commands = "\n".join("python -m mlbench.sweep " + " ".join(asked.words) for asked in plan.asked)
    note = f"{plan.question}\n\n```\n{commands}\n```"
    return shared | counts | {"study": plan.name, "mlbench": plan.mlbench, "mlflow.note.content": note}


def aggregates(records: Sequence[Record], *, time_ms: int) -> Iterator[Metric]:
    """Yield the study's numbers as metrics, one series a family of points, at the step of its workers.

    What is infinite (the goal was missed) or unknown has no metric: MLflow's charts cannot draw it.
    """
    compared = speedup.speedups(speedup.points(records))
    names = _names([one.point for one in compared])
    for one in compared:
        point = one.point
        values: dict[str, Any] = {
            "time_to_accuracy": point.time_to_accuracy,
            "epochs": point.epochs,
            "seconds_per_epoch": point.seconds_per_epoch,
            "samples_per_s": point.samples_per_s,
            "exposed_communication_share": point.exposed,
            "overlapped_communication_share": point.overlapped,
            "usd": point.usd,
            "usd_spot": point.usd_spot,
            "usd_spent": point.usd_spent,
            "runs": point.n,
            "reached": point.reached,
            "speedup": one.total,
            "speedup_compute": one.compute,
            "efficiency": one.efficiency,
            "price_index": one.price_index,
        }
        values |= {f"phase/{phase}": seconds for phase, seconds in point.phases.items()}
        for name, value in values.items():
            for suffix, number in _numbers(value):
                yield Metric(f"{name}{suffix}/{names[point.key]}", number, time_ms, point.workers)


def _numbers(value: Any) -> Iterator[tuple[str, float]]:
    """Yield a value, and the ends of its interval, as far as they are numbers that a chart can show."""
    parts = {"": value}
    if isinstance(value, (Estimate, Ratio)):
        parts = {"": value.value, "_low": value.low, "_high": value.high}
    for suffix, number in parts.items():
        if number is not None and math.isfinite(number):
            yield suffix, float(number)


def _names(points: Sequence[Point]) -> dict[str, str]:
    """Return a short name of the family of each point by its key: the task, and what tells families apart.

    Families that differ in a field without a word of its own are counted.
    """
    groups = speedup.families(points)
    varied = [f for f in FIELDS[1:] if len({getattr(group[0], f) for group in groups}) > 1]
    names: dict[str, str] = {}
    taken: set[str] = set()
    for group in groups:
        words = [group[0].task, *(str(getattr(group[0], field)) for field in varied)]
        short = plain = " ".join(word for word in words if word).translate(_MLFLOW)
        count = 1
        while short in taken:
            count += 1
            short = f"{plain} {count}"
        taken.add(short)
        names |= {point.key: short for point in group}
    return names


# Metric names may have letters, digits and _-. :/ only (mlflow.utils.validation, 3.17, 2026).
_MLFLOW = str.maketrans({"=": "", ">": "", "<": "", "%": "", ",": " ", "(": "", ")": "", "/": "-"})


def _written(ledger: Ledger, run: str) -> set[tuple[str, int, float]]:
    """Return the aggregates that a parent has: name, step and value."""
    names = ledger.client.get_run(run).data.metrics
    return {
        (metric.key, metric.step, metric.value)
        for name in names
        for metric in ledger.client.get_metric_history(run, name)
    }


def _adopt(ledger: Ledger, run: str, plan: Study) -> None:
    """Give the study's runs this parent, and delete the one that they had before."""
    for old in ledger.search(f"tags.`{RUN_ID}` = '{_identity(plan, plan.name)} (superseded)'"):
        for child in ledger.search(f"tags.`{PARENT}` = '{old.info.run_id}'"):
            ledger.client.set_tag(child.info.run_id, PARENT, run)
        ledger.client.delete_run(old.info.run_id)


def _identity(plan: Study | None, name: str) -> str:
    """Return the parent's run id; two output folders may have studies of one name."""
    return f"study-{name}-{plan.created}" if plan else f"study-{name}"

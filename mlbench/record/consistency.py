"""Check that a record is consistent with itself.

`contradiction` is called whenever a record is read: headline numbers follow from the record's validations and
intervals. The `verdict` of reader.py derives every field from the event log again.
"""

import math
from collections.abc import Iterator
from datetime import datetime

from mlbench.record import cost
from mlbench.record.build_record import accuracy_after, best
from mlbench.record.node_types import other_hardware
from mlbench.record.record import Record

SAME = 1e-6  # relative, as sums in another order differ by 1e-12
CLOCK_S = 0.002  # s, as started_at and ended_at are written in whole milliseconds


def contradiction(record: Record) -> str | None:
    """Return the first field that the record's other fields contradict, as a clause, or None."""
    for name, stated, derived in _derived(record):
        if stated != derived:
            return f"its {name} is {_text(stated)}, which its other fields make {_text(derived)}"
    return next(_inexact(record), None)


def _derived(record: Record) -> Iterator[tuple[str, object, object]]:
    """Yield the name, stated value and derived value of fields that must be equal."""
    experiment, validations = record.experiment, record.validations
    task, last = experiment.task, validations[-1] if validations else None
    yield "workers", record.workers, experiment.workers
    yield "goal", record.goal, experiment.target
    yield "eligible", record.eligible, not record.official_reasons
    goal = record.goal
    value = last.metrics.get(goal.metric) if last and goal else None
    reached = goal is not None and value is not None and goal.reached(value)
    if record.status == "goal_reached" or reached and record.status in ("goal_not_reached", "completed"):
        yield "status", record.status, "goal_reached" if reached else "another"
    to_goal = last.elapsed if last and record.status == "goal_reached" else None
    yield "time_to_accuracy", record.time_to_accuracy, to_goal
    yield "best", record.best, best(validations, task)
    yield "accuracy_after_time", record.accuracy_after_time, accuracy_after(validations, task, record.status)
    yield "epochs", record.epochs, last.epoch if last else 0.0
    yield "steps", record.steps, last.step if last else 0
    if record.intervals:
        yield "number of intervals", len(record.intervals), len(validations)
        yield "samples", record.samples, sum(interval.samples for interval in record.intervals)


def _inexact(record: Record) -> Iterator[str]:
    """Yield a clause for each number that differs from its derived value by more than rounding."""
    begun, ended = map(datetime.fromisoformat, (record.started_at, record.ended_at))
    if abs(record.wall - (ended - begun).total_seconds()) > CLOCK_S:
        yield f"its wall is {record.wall:g} s, from started_at to ended_at are {ended - begun}"
    rate, each = record.samples_per_s, record.samples_per_s_per_worker
    if (rate is None) != (each is None) or rate and each and not _same(rate, each * record.workers):
        yield f"its samples_per_s_per_worker is {each}, its samples_per_s {rate}"
    if rate is not None and record.validations:
        elapsed = record.validations[-1].elapsed
        outside = math.fsum(spread.max for spread in record.outside.values())  # of any rank this or less
        steady = record.samples - (record.warm_up.samples if record.warm_up else 0)
        least = steady / elapsed if elapsed > 0 else math.inf
        most = steady / (elapsed - outside) if elapsed > outside else math.inf
        if not least * (1 - SAME) <= rate <= most * (1 + SAME):
            yield f"its samples_per_s is {rate:g}, {record.samples} samples in its time are {least:g} or more"
    for name, spread in record.phases.items() if record.intervals else ():
        total = math.fsum(
            interval.phases[name].mean for interval in record.intervals if name in interval.phases
        )
        total -= record.warm_up.phases.get(name, 0.0) if record.warm_up else 0.0
        if not _same(spread.mean, total):
            yield f"its phase {name} is {spread.mean:g} s, that of its intervals {total:g} s"
    if record.cost is None and other_hardware(record.experiment, record.nodes):
        return
    bill = cost.cost(
        record.experiment.hardware,
        record.workers,
        wall_s=record.wall,
        time_to_accuracy_s=record.time_to_accuracy,
    )
    for name in ("wall_usd", "wall_usd_spot", "goal_usd", "goal_usd_spot"):
        stated, derived = getattr(record.cost, name, None), getattr(bill, name, None)
        if stated != derived and not (stated and derived and _same(stated, derived)):
            yield f"its {name} is {_text(stated)}, its time and its hardware's price make {_text(derived)}"


def _same(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=SAME, abs_tol=1e-9)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

"""The tables of the page: points with intervals, runs, what is missing, and published results."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlbench.analysis import stragglers
from mlbench.analysis.bootstrap import Ratio
from mlbench.analysis.points import Estimate
from mlbench.record import attempts, fields, format
from mlbench.record.format import counted, last_line, quantity
from mlbench.record.record import Record
from mlbench.report.grouping import Group
from mlbench.report.page_input import Planned
from mlbench.report.quantities import QUANTITIES

# The published quantities that have a counterpart here, with their headings; the rest is counted only.
PUBLISHED = {
    "time_to_accuracy": "time to accuracy",
    "train_time": "train time",
    "speed_up": "speed-up",
    "compute_speed_up": "speed-up, compute only",
    "communication_share": "communication share",
    "price_index": "price index",
    "cost": "cost",
    "throughput": "throughput",
    "bus_bandwidth": "bus bandwidth",
}
SHORT = 24  # letters; a shorter caveat is written at each run, a longer one that several share is numbered
ABOUT = ("label", "goal", "workers", "backend", "device", "hardware", "software", "date", "n")


@dataclass(frozen=True)
class Cell:
    text: str
    below: str = ""
    number: bool = False
    link: str = ""  # to a page beside this one


@dataclass(frozen=True)
class Row:
    """`filters`: task, workers and hardware by name, by which a reader may filter."""

    cells: list[Cell]
    apart: bool = False
    filters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """`notes` are numbered from 1; cells refer to them as [1]."""

    headings: list[str]
    rows: list[Row]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Published:
    """One published study: its name, source and caveats, and its numbers."""

    title: str
    about: list[str]
    table: Table


def points(group: Group) -> Table:
    """Return the aggregates, one row a point; columns without any value are left out."""
    shown = [one for one in QUANTITIES if one.heading]
    headings = ["curve", "workers", "goal reached", *(one.heading for one in shown)]
    rows = []
    for curve in group.curves:
        for one in curve.speedups:
            point = one.point
            reached = f"{point.reached} of {point.n}" if point.goal else f"{point.n}, no goal"
            cells = [
                Cell(curve.label or "-"),
                Cell(str(point.workers), number=True),
                Cell(reached, number=True),
            ]
            cells += [cell(each.value(one), each.unit) for each in shown]
            filters = {"workers": str(point.workers), "hardware": point.hardware}
            rows.append(Row(cells, apart=one.why is not None, filters=filters))
    present = [place for place in range(len(headings)) if any(row.cells[place].text != "-" for row in rows)]
    return Table(
        [headings[place] for place in present],
        [Row([row.cells[i] for i in present], row.apart, row.filters) for row in rows],
    )


def runs(records: Iterable[Record], disturbed: Mapping[str, str]) -> Table:
    """Return every run, missed ones with the reason; `disturbed` has what disturbed a run, by its id."""
    headings = ["run", "task", "workers", "backend", "seed", "status", "time to accuracy", "best", "epochs"]
    headings += ["latest rank", "why it ended, what disturbed it"]
    unique = {record.run_id: record for record in records}
    doubts = {run_id: _doubts(record, disturbed.get(run_id)) for run_id, record in unique.items()}
    counts = Counter(sentence for some in doubts.values() for sentence in some)
    notes = [sentence for sentence, count in counts.items() if count > 1 and len(sentence) > SHORT]
    rows = []
    for record in sorted(unique.values(), key=_place):
        texts = fields.texts(record)
        time = texts.get("time_to_accuracy", "infinite") if record.status == "goal_reached" else "infinite"
        doubt = (f"[{notes.index(one) + 1}]" if one in notes else one for one in doubts[record.run_id])
        cells = [
            Cell(record.run_id),
            Cell(f"{texts['task']}, {texts['scale']}"),
            Cell(texts["workers"], number=True),
            Cell(texts["backend"]),
            Cell(str(record.seed), number=True),
            Cell(record.status.replace("_", " ")),
            Cell(time if record.goal else "-", number=True),
            Cell(texts.get("best", "-"), number=True),
            Cell(format.number(record.epochs), number=True),
            Cell(stragglers.latest(record.lateness) or "-"),
            Cell("; ".join(doubt)),
        ]
        experiment = record.experiment
        filters = {"task": experiment.task.name, "workers": str(record.workers)}
        filters["hardware"] = experiment.hardware.name
        rows.append(Row(cells, record.status not in ("goal_reached", "completed"), filters))
    return Table(headings, rows, notes)


def _doubts(record: Record, disturbed: str | None) -> list[str]:
    """Return why a run ended as it did, and what a reader must know of its numbers."""
    why = [last_line(record.error)] if record.error else []
    why += [counted(len(record.restarts), "restart")] if record.restarts else []
    beside = [disturbed] if disturbed else []
    return list(dict.fromkeys([*why, *record.caveats, *beside, *record.warnings]))


def _place(record: Record) -> tuple[str, str, int, str]:
    return record.experiment.task.name, record.experiment.scale, record.workers, record.run_id


def missing(records: Iterable[Record], planned: Sequence[Planned]) -> Table | None:
    """Return the runs that were asked for and have no result; None if all have one."""
    done = {(record.key, record.seed) for record in attempts.results(records)}
    rows = [
        Row([Cell(one.words), Cell(str(one.seed), number=True), Cell(one.why or "not run yet")], apart=True)
        for one in planned
        if (one.key, one.seed) not in done
    ]
    return Table(["experiment", "seed", "why"], rows) if rows else None


def references(results: Sequence[Any]) -> tuple[list[Published], int]:
    """Return published results by study, and how many numbers have no column here."""
    shown = [one for one in results if one.metric in PUBLISHED]
    by_study: dict[str, list[Any]] = {}
    for one in shown:
        by_study.setdefault(one.study, []).append(one)
    return [_published(some) for some in by_study.values()], len(results) - len(shown)


def _published(some: Sequence[Any]) -> Published:
    first = some[0]
    about = [f"Source: {first.source}."] + ([f"Caveat: {first.caveat}"] if first.caveat else [])
    if any(one.chart for one in some):
        about.append("Values marked ~ were read off a chart.")
    names = [name for name in ABOUT if any(getattr(one, name) is not None for one in some)]
    same = [name for name in names if len({getattr(one, name) for one in some}) == 1]
    about += [f"{name}: {getattr(first, name)}" for name in same if name != "workers"]
    names = [name for name in names if name not in same or name == "workers"]
    metrics = [metric for metric in PUBLISHED if any(one.metric == metric for one in some)]
    by_row: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in some:
        by_row.setdefault(tuple(getattr(one, name) for name in names), {})[one.metric] = one
    rows = [
        Row(
            [Cell("-" if value is None else str(value)) for value in place]
            + [_published_cell(values.get(metric)) for metric in metrics]
        )
        for place, values in by_row.items()
    ]
    return Published(first.title, about, Table([*names, *(PUBLISHED[metric] for metric in metrics)], rows))


def _published_cell(one: Any) -> Cell:
    if one is None:
        return Cell("-")
    value = quantity(one.value, "" if one.unit == "1" else one.unit)
    return Cell(("~" if one.chart else "") + value, number=True)


def cell(value: Estimate | Ratio | float | None, unit: str) -> Cell:
    """Return a value with its interval below; a median that is infinite says so."""
    if isinstance(value, float | int):
        return Cell(_finite(value, unit), number=True)
    if value is None or value.value is None:
        return Cell("-", number=True)
    below = ""
    if value.low is not None and value.high is not None and (value.low, value.high) != (1.0, 1.0):
        below = f"{_finite(value.low, unit)} to {_finite(value.high, unit)}"
    return Cell(_finite(value.value, unit), below, number=True)


def _finite(value: float, unit: str) -> str:
    return quantity(value, unit) if math.isfinite(value) else "infinite"

"""Build the tables of the page: points with intervals, runs, missing runs, and published results."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from mlbench.analysis import stragglers
from mlbench.analysis.bootstrap import Ratio
from mlbench.analysis.points import MedianEstimate
from mlbench.record import attempts, fields, format
from mlbench.record.format import counted, last_line, quantity
from mlbench.record.record import Record
from mlbench.report.grouping import Group
from mlbench.report.quantities import QUANTITIES

# The published quantities that have a counterpart here, with their headings. The rest is counted only.
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
SHORT = 24  # letters; a shorter caveat is written at each run, a longer shared one is numbered
ABOUT = ("label", "goal", "workers", "backend", "device", "hardware", "software", "date", "n")


@dataclass(frozen=True)
class Planned:
    """One planned run of a study. `why` is what happened to it if it has no record."""

    label: str  # e.g. "task=logreg workers=2"
    key: str
    seed: int
    why: str = ""


@dataclass(frozen=True)
class TableCell:
    text: str
    below: str = ""
    number: bool = False
    link: str = ""  # to a page next to this one


@dataclass(frozen=True)
class Row:
    """`filters`: task, workers and hardware by name, by which a reader may filter."""

    cells: list[TableCell]
    apart: bool = False
    filters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """`notes` are numbered from 1, and cells refer to them as [1]."""

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
    """Return the aggregates, one row a point. Columns without any value are left out."""
    shown = [quantity for quantity in QUANTITIES if quantity.heading]
    headings = ["curve", "workers", "goal reached", *(quantity.heading for quantity in shown)]
    rows = []
    for curve in group.curves:
        for speedup in curve.speedups:
            point = speedup.point
            reached = f"{point.reached} of {point.n}" if point.goal else f"{point.n}, no goal"
            cells = [
                TableCell(curve.label or "-"),
                TableCell(str(point.workers), number=True),
                TableCell(reached, number=True),
            ]
            cells += [cell(each.value(speedup), each.unit) for each in shown]
            filters = {"workers": str(point.workers), "hardware": point.hardware}
            rows.append(Row(cells, apart=speedup.why is not None, filters=filters))
    present = [index for index in range(len(headings)) if any(row.cells[index].text != "-" for row in rows)]
    return Table(
        [headings[index] for index in present],
        [Row([row.cells[i] for i in present], row.apart, row.filters) for row in rows],
    )


def runs(records: Iterable[Record], disturbed: Mapping[str, str]) -> Table:
    """Return every run, missed ones with the reason. `disturbed` has what disturbed a run, by its id."""
    headings = ["run", "task", "workers", "backend", "seed", "status", "time to accuracy", "best", "epochs"]
    headings += ["latest rank", "why it ended, what disturbed it"]
    unique = {record.run_id: record for record in records}
    doubts = {run_id: _doubts(record, disturbed.get(run_id)) for run_id, record in unique.items()}
    counts = Counter(sentence for some in doubts.values() for sentence in some)
    notes = [sentence for sentence, count in counts.items() if count > 1 and len(sentence) > SHORT]
    rows = []
    place = attrgetter("experiment.task.name", "experiment.scale", "workers", "run_id")
    for record in sorted(unique.values(), key=place):
        texts = fields.texts(record)
        time = texts.get("time_to_accuracy", "infinite") if record.status == "goal_reached" else "infinite"
        doubt = (
            f"[{notes.index(caveat) + 1}]" if caveat in notes else caveat for caveat in doubts[record.run_id]
        )
        cells = [
            TableCell(record.run_id),
            TableCell(f"{texts['task']}, {texts['scale']}"),
            TableCell(texts["workers"], number=True),
            TableCell(texts["backend"]),
            TableCell(str(record.seed), number=True),
            TableCell(record.status.replace("_", " ")),
            TableCell(time if record.goal else "-", number=True),
            TableCell(texts.get("best", "-"), number=True),
            TableCell(format.number(record.epochs), number=True),
            TableCell(stragglers.latest(record.lateness) or "-"),
            TableCell("; ".join(doubt)),
        ]
        experiment = record.experiment
        filters = {"task": experiment.task.name, "workers": str(record.workers)}
        filters["hardware"] = experiment.hardware.name
        rows.append(Row(cells, record.status not in ("goal_reached", "completed"), filters))
    return Table(headings, rows, notes)


def _doubts(record: Record, disturbed: str | None) -> list[str]:
    """Return why a run ended as it did, and the caveats of its numbers."""
    why = [last_line(record.error)] if record.error else []
    why += [counted(len(record.restarts), "restart")] if record.restarts else []
    beside = [disturbed] if disturbed else []
    return list(dict.fromkeys([*why, *record.caveats, *beside, *record.warnings]))


def missing(records: Iterable[Record], planned: Sequence[Planned]) -> Table | None:
    """Return the planned runs without a result, or None if all have one."""
    done = {(record.key, record.seed) for record in attempts.results(records)}
    rows = [
        Row(
            [
                TableCell(run.label),
                TableCell(str(run.seed), number=True),
                TableCell(run.why or "not run yet"),
            ],
            apart=True,
        )
        for run in planned
        if (run.key, run.seed) not in done
    ]
    return Table(["experiment", "seed", "why"], rows) if rows else None


def references(results: Sequence[Any]) -> tuple[list[Published], int]:
    """Return published results by study, and how many numbers have no column here."""
    shown = [result for result in results if result.metric in PUBLISHED]
    by_study: dict[str, list[Any]] = {}
    for result in shown:
        by_study.setdefault(result.study, []).append(result)
    return [_published(some) for some in by_study.values()], len(results) - len(shown)


def _published(some: Sequence[Any]) -> Published:
    first = some[0]
    about = [f"Source: {first.source}."] + ([f"Caveat: {first.caveat}"] if first.caveat else [])
    if any(result.chart for result in some):
        about.append("Values marked ~ were read off a chart.")
    names = [name for name in ABOUT if any(getattr(result, name) is not None for result in some)]
    same = [name for name in names if len({getattr(result, name) for result in some}) == 1]
    about += [f"{name}: {getattr(first, name)}" for name in same if name != "workers"]
    names = [name for name in names if name not in same or name == "workers"]
    metrics = [metric for metric in PUBLISHED if any(result.metric == metric for result in some)]
    by_row: dict[tuple[Any, ...], dict[str, Any]] = {}
    for result in some:
        by_row.setdefault(tuple(getattr(result, name) for name in names), {})[result.metric] = result
    rows = [
        Row(
            [TableCell("-" if value is None else str(value)) for value in key]
            + [_published_cell(values.get(metric)) for metric in metrics]
        )
        for key, values in by_row.items()
    ]
    return Published(first.title, about, Table([*names, *(PUBLISHED[metric] for metric in metrics)], rows))


def _published_cell(result: Any) -> TableCell:
    if result is None:
        return TableCell("-")
    value = quantity(result.value, "" if result.unit == "1" else result.unit)
    return TableCell(("~" if result.chart else "") + value, number=True)


def cell(value: MedianEstimate | Ratio | float | None, unit: str) -> TableCell:
    """Return a value with its interval below, or a sentence for an infinite median."""
    if isinstance(value, float | int):
        return TableCell(_finite(value, unit), number=True)
    if value is None or value.value is None:
        return TableCell("-", number=True)
    below = ""
    if value.low is not None and value.high is not None and (value.low, value.high) != (1.0, 1.0):
        below = f"{_finite(value.low, unit)} to {_finite(value.high, unit)}"
    return TableCell(_finite(value.value, unit), below, number=True)


def _finite(value: float, unit: str) -> str:
    return quantity(value, unit) if math.isfinite(value) else "infinite"

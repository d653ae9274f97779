"""The table of `results list`: one line per run, with as many columns as the terminal has room for."""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlbench.experiment import format
from mlbench.experiment.errors import UserError, suggest
from mlbench.experiment.record import Record
from mlbench.terminal import tables

GAP = 2  # blanks between two columns
STATUS = {  # as short as a narrow table needs it
    "goal_reached": "reached",
    "goal_not_reached": "missed",
    "interrupted": "stopped",
}


@dataclass(frozen=True)
class Column:
    """One column; `name` is also its name in JSON and in sort=."""

    name: str
    value: Callable[[Record], Any]
    text: Callable[[Any], str] = tables.cell
    right: bool = False


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else format.duration(seconds)


def _usd(value: float | None) -> str:
    return "-" if value is None else format.usd(value)


def _best(one: Record) -> str:
    if one.best is None:
        return "-"
    return f"{format.number(one.best)} {one.experiment.task.metric_unit}".rstrip()


# The order is that of importance: a narrow terminal gets the first ones. "run" is shown shortened, as "id".
COLUMNS = (
    Column("run", lambda one: one.run_id),
    Column("when", lambda one: one.started_at, lambda at: at[5:16].replace("T", " ")),
    Column("task", lambda one: one.experiment.task.name),
    Column("workers", lambda one: one.workers, right=True),
    Column("status", lambda one: one.status, lambda status: STATUS.get(status) or status),
    Column("time_to_accuracy", lambda one: one.time_to_accuracy, _duration, right=True),
    Column("best", lambda one: one.best, right=True),
    Column("scale", lambda one: one.experiment.scale),
    Column("backend", lambda one: one.experiment.backend.name),
    Column("epochs", lambda one: one.epochs, right=True),
    Column("throughput", lambda one: one.samples_per_s, right=True),
    Column("cost_usd", lambda one: one.cost.wall_usd if one.cost else None, _usd, right=True),
    Column("hardware", lambda one: one.experiment.hardware.name),
    Column("division", lambda one: one.experiment.division.name),
    Column("goal", lambda one: str(one.goal) if one.goal else None),
    Column("seed", lambda one: one.seed, right=True),
    Column("study", lambda one: one.experiment.study),
    Column("source", lambda one: one.source),
)
HEADINGS = {"run": "id", "workers": "w", "time_to_accuracy": "time", "cost_usd": "cost"}


def summary(one: Record) -> dict[str, Any]:
    """Return every column's value by its name, for JSON."""
    return {column.name: column.value(one) for column in COLUMNS} | {"unit": one.sample_unit}


def ordered(records: Sequence[Record], *, sort: str = "", last: int | None = None) -> list[Record]:
    """Return the newest `last` records in the order of the column `sort`; "-" in front turns it round.

    Raises UserError for a column that is not there. Records without a value come last.
    """
    found = list(records)[-last:] if last else list(records)
    if not sort:
        return found
    name = sort.removeprefix("-")
    columns = {HEADINGS.get(column.name, column.name): column for column in COLUMNS}
    columns |= {column.name: column for column in COLUMNS}
    if name not in columns:
        raise UserError(f"sort={sort} is not a column{suggest(name, list(columns))}")
    value = columns[name].value
    known = [one for one in found if value(one) is not None]
    known.sort(key=value, reverse=sort.startswith("-"))
    return known + [one for one in found if value(one) is None]


def text(records: Sequence[Record], *, wide: bool = False) -> str:
    """Return the table; all columns and whole names where `wide` or where stdout is no terminal."""
    wide = wide or not sys.stdout.isatty()
    room = None if wide else shutil.get_terminal_size().columns
    ids = [one.run_id for one in records] if wide else short_ids([one.run_id for one in records])
    headings: list[str] = []
    cells: list[list[str]] = []
    right: list[bool] = []
    used = -GAP
    for column in COLUMNS:
        heading = column.name.replace("_", " ") if wide else HEADINGS.get(column.name, column.name)
        lines = [_cell(column, one, wide) for one in records] if column.name != "run" else ids
        width = max(len(heading), *map(len, lines))
        used += GAP + width
        if room is not None and used > room:
            break
        headings.append(heading)
        cells.append(lines)
        right.append(column.right)
    return tables.table(headings, list(zip(*cells, strict=True)), right=right, fold=not wide)


def short_ids(names: Sequence[str]) -> list[str]:
    """Return for each run's name the shortest end, from a hyphen on, that no other name has."""
    parts = [name.split("-") for name in names]
    depth = [1] * len(names)
    while True:
        ends = ["-".join(part[-d:]) for part, d in zip(parts, depth, strict=True)]
        double = [i for i, end in enumerate(ends) if ends.count(end) > 1 and depth[i] < len(parts[i])]
        if not double:
            return ends
        for i in double:
            depth[i] += 1


def _cell(column: Column, one: Record, wide: bool) -> str:
    if column.name == "status" and wide:
        return one.status
    if column.name == "best":
        return _best(one)
    if column.name == "throughput" and one.samples_per_s is not None:
        return f"{format.number(one.samples_per_s)} {one.sample_unit}/s"
    return column.text(column.value(one))

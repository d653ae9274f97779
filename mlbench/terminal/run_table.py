"""The table of `results list`: one line per run, with as many columns as the terminal has room for."""

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mlbench.config.errors import UserError, suggest
from mlbench.record import cost, format
from mlbench.record.record import Record
from mlbench.terminal import tables

STATUS = {  # as short as a narrow table needs it
    "goal_reached": "reached",
    "goal_not_reached": "missed",
    "interrupted": "stopped",
    "preempted": "preempted",
}


@dataclass(frozen=True)
class Column:
    """One column.

    - name: also in JSON and in sort=. heading: of a narrow table, where it is shorter.
    - value: for JSON and for sorting. text: for people, without it the value's.
    """

    name: str
    value: Callable[[Record], Any]
    text: Callable[[Record, Any], str] | None = None
    right: bool = False
    heading: str = ""

    def cell(self, record: Record) -> str:
        value = self.value(record)
        return self.text(record, value) if self.text and value is not None else tables.cell(value)


# The order is that of importance: a narrow terminal gets the first ones. "run" is shown shortened, as "id".
COLUMNS = (
    Column("run", lambda r: r.run_id, heading="id"),
    Column("when", lambda r: r.started_at, lambda r, at: at[5:16].replace("T", " ")),
    Column("task", lambda r: r.experiment.task.name),
    Column("workers", lambda r: r.workers, right=True, heading="w"),
    Column("status", lambda r: r.status),
    Column("time_to_accuracy", lambda r: r.time_to_accuracy,
           lambda r, s: format.duration(s), right=True, heading="time"),
    Column("best", lambda r: r.best,
           lambda r, value: format.measured(value, r.experiment.task.metric_unit, r.goal), right=True),
    Column("scale", lambda r: r.experiment.scale),
    Column("backend", lambda r: r.experiment.backend.name),
    Column("epochs", lambda r: r.epochs, right=True),
    Column("throughput", lambda r: r.samples_per_s,
           lambda r, rate: f"{format.number(rate)} {r.sample_unit}/s", right=True),
    Column("cost_usd", lambda r: r.cost.wall_usd if r.cost else None,
           lambda r, usd: format.usd(usd) + (" elsewhere" if cost.of_other_node(r) else ""),
           right=True, heading="cost"),
    Column("hardware", lambda r: r.experiment.hardware.name),
    Column("sync", lambda r: r.experiment.sync.name),
    Column("network", lambda r: str(r.experiment.network)),
    Column("division", lambda r: r.experiment.division.name),
    Column("goal", lambda r: str(r.goal) if r.goal else None),
    Column("seed", lambda r: r.seed, right=True),
    Column("study", lambda r: r.experiment.study),
    Column("source", lambda r: r.origin),
)  # fmt: skip


class Row(NamedTuple):
    """One run in the table: each column's value and its text, and the unit of its samples."""

    values: tuple[Any, ...]
    texts: tuple[str, ...]
    unit: str


def row(record: Record) -> Row:
    """Return a run's line of the table."""
    values = tuple(column.value(record) for column in COLUMNS)
    return Row(values, tuple(column.cell(record) for column in COLUMNS), record.sample_unit)


def summary(row: Row) -> dict[str, Any]:
    """Return every column's value by its name, for JSON."""
    names = (column.name for column in COLUMNS)
    return dict(zip(names, row.values, strict=True)) | {"unit": row.unit}


def ordered(rows: Sequence[Row], *, sort: str = "", last: int | None = None) -> list[Row]:
    """Return the newest `last` rows in the order of the column `sort`; "-" in front reverses it.

    Raises UserError for a column that is not there. Rows without a value come last.
    """
    newest = list(rows)[-last:] if last else list(rows)
    if not sort:
        return newest
    places = {name: place for place, c in enumerate(COLUMNS) for name in (c.heading, c.name) if name}
    name = sort.removeprefix("-")
    if name not in places:
        raise UserError(f"sort={sort} is not a column{suggest(name, list(places))}")
    place = places[name]
    known = [row for row in newest if row.values[place] is not None]
    known.sort(key=lambda row: row.values[place], reverse=sort.startswith("-"))
    return known + [row for row in newest if row.values[place] is None]


def text(rows: Sequence[Row], *, wide: bool = False) -> str:
    """Return the table; all columns and whole names where `wide` or where stdout is no terminal."""
    wide = wide or not sys.stdout.isatty()
    if wide:
        headings = [column.name.replace("_", " ") for column in COLUMNS]
        right = [column.right for column in COLUMNS]
        return tables.table(headings, [row.texts for row in rows], right=right, fold=False)
    cells = dict(zip(COLUMNS, map(list, zip(*(row.texts for row in rows), strict=True)), strict=True))
    cells[COLUMNS[0]] = short_ids(cells[COLUMNS[0]])
    cells |= {c: [STATUS.get(text, text) for text in cells[c]] for c in COLUMNS if c.name == "status"}
    room, shown = shutil.get_terminal_size().columns + tables.GAP, []
    for column, texts in cells.items():
        room -= tables.GAP + max(map(len, (column.heading or column.name, *texts)))
        if room < 0:
            break
        shown.append(column)
    narrow = list(zip(*(cells[column] for column in shown), strict=True))
    return tables.table(
        [c.heading or c.name for c in shown], narrow, right=[c.right for c in shown], fold=False
    )


def short_ids(names: Sequence[str]) -> list[str]:
    """Return for each run's name the shortest end, from a hyphen on, that no other name ends in."""
    counts = Counter(end for name in names for end in _ends(name))
    return [next((end for end in _ends(name) if counts[end] == 1), name) for name in names]


def _ends(name: str) -> list[str]:
    """Return the ends of a name from each of its hyphens on, shortest first, and the whole."""
    parts = name.split("-")
    return ["-".join(parts[start:]) for start in reversed(range(len(parts)))]

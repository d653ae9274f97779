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
           lambda r, value: f"{format.number(value)} {r.experiment.task.metric_unit}".rstrip(), right=True),
    Column("scale", lambda r: r.experiment.scale),
    Column("backend", lambda r: r.experiment.backend.name),
    Column("epochs", lambda r: r.epochs, right=True),
    Column("throughput", lambda r: r.samples_per_s,
           lambda r, rate: f"{format.number(rate)} {r.sample_unit}/s", right=True),
    Column("cost_usd", lambda r: r.cost.wall_usd if r.cost else None,
           lambda r, cost: format.usd(cost), right=True, heading="cost"),
    Column("hardware", lambda r: r.experiment.hardware.name),
    Column("sync", lambda r: r.experiment.sync.name),
    Column("network", lambda r: str(r.experiment.network)),
    Column("division", lambda r: r.experiment.division.name),
    Column("goal", lambda r: str(r.goal) if r.goal else None),
    Column("seed", lambda r: r.seed, right=True),
    Column("study", lambda r: r.experiment.study),
    Column("source", lambda r: r.source),
)  # fmt: skip


def summary(record: Record) -> dict[str, Any]:
    """Return every column's value by its name, for JSON."""
    return {column.name: column.value(record) for column in COLUMNS} | {"unit": record.sample_unit}


def ordered(records: Sequence[Record], *, sort: str = "", last: int | None = None) -> list[Record]:
    """Return the newest `last` records in the order of the column `sort`; "-" in front reverses it.

    Raises UserError for a column that is not there. Records without a value come last.
    """
    newest = list(records)[-last:] if last else list(records)
    if not sort:
        return newest
    columns = {name: column for column in COLUMNS for name in (column.heading, column.name) if name}
    name = sort.removeprefix("-")
    if name not in columns:
        raise UserError(f"sort={sort} is not a column{suggest(name, list(columns))}")
    value = columns[name].value
    known = sorted((r for r in newest if value(r) is not None), key=value, reverse=sort.startswith("-"))
    return known + [record for record in newest if value(record) is None]


def text(records: Sequence[Record], *, wide: bool = False) -> str:
    """Return the table; all columns and whole names where `wide` or where stdout is no terminal."""
    wide = wide or not sys.stdout.isatty()
    if wide:
        rows = [[column.cell(record) for column in COLUMNS] for record in records]
        headings = [column.name.replace("_", " ") for column in COLUMNS]
        return tables.table(headings, rows, right=[column.right for column in COLUMNS], fold=False)
    cells = {column: [column.cell(record) for record in records] for column in COLUMNS}
    cells[COLUMNS[0]] = short_ids([record.run_id for record in records])
    cells |= {c: [STATUS.get(text, text) for text in cells[c]] for c in COLUMNS if c.name == "status"}
    room, shown = shutil.get_terminal_size().columns + GAP, []
    for column, texts in cells.items():
        room -= GAP + max(map(len, (column.heading or column.name, *texts)))
        if room < 0:
            break
        shown.append(column)
    rows = list(zip(*(cells[column] for column in shown), strict=True))
    return tables.table([c.heading or c.name for c in shown], rows, right=[c.right for c in shown])


def short_ids(names: Sequence[str]) -> list[str]:
    """Return for each run's name the shortest end, from a hyphen on, that no other name ends in."""
    ids = []
    for name in names:
        parts = name.split("-")
        ends = ("-".join(parts[start:]) for start in reversed(range(len(parts))))
        single = (end for end in ends if sum(f"-{other}".endswith(f"-{end}") for other in names) == 1)
        ids.append(next(single, name))
    return ids

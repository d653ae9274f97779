"""The table of `results list`: one line per run, with as many columns as the terminal has room for."""

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlbench.config.errors import UserError, suggest
from mlbench.config.goal import Goal
from mlbench.record import format
from mlbench.terminal import tables

STATUS = {  # as short as a narrow table needs it
    "goal_reached": "reached",
    "goal_not_reached": "missed",
    "interrupted": "stopped",
    "preempted": "preempted",
}


Row = Mapping[str, Any]  # values of one run by name (analysis.run_index.Entry.row)


@dataclass(frozen=True)
class Column:
    """One column.

    - name: of the value, also in JSON and in sort=. heading: of a narrow table, where it is shorter.
    - text: of a value that is there, for people; without it the value's.
    """

    name: str
    text: Callable[[Row, Any], str] | None = None
    right: bool = False
    heading: str = ""

    def cell(self, row: Row) -> str:
        value = row[self.name]
        return self.text(row, value) if self.text and value is not None else tables.cell(value)

    def cells(self, rows: Sequence[Row]) -> list[str]:
        if self.text is not None:
            return [self.cell(row) for row in rows]
        texts = {value: tables.cell(value) for value in {row[self.name] for row in rows}}  # mostly few
        return [texts[row[self.name]] for row in rows]


def _best(row: Row, value: float) -> str:
    return format.measured(value, row["metric_unit"], Goal(*row["target"]) if row["target"] else None)


def _cost(row: Row, usd: float) -> str:
    return format.usd(usd) + (" elsewhere" if row["cost_elsewhere"] else "")


# The order is that of importance: a narrow terminal gets the first ones. "run" is shown shortened, as "id".
COLUMNS = (
    Column("run", heading="id"),
    Column("when", lambda row, at: at[5:16].replace("T", " ")),
    Column("task"),
    Column("workers", right=True, heading="w"),
    Column("status"),
    Column("time_to_accuracy", lambda row, seconds: format.duration(seconds), right=True, heading="time"),
    Column("best", _best, right=True),
    Column("scale"),
    Column("backend"),
    Column("epochs", right=True),
    Column("throughput", lambda row, rate: f"{format.number(rate)} {row['unit']}/s", right=True),
    Column("cost_usd", _cost, right=True, heading="cost"),
    Column("hardware"),
    Column("sync"),
    Column("network"),
    Column("division"),
    Column("goal"),
    Column("seed", right=True),
    Column("study"),
    Column("source"),
)


def summary(row: Row) -> dict[str, Any]:
    """Return every column's value by its name, for JSON."""
    return {column.name: row[column.name] for column in COLUMNS} | {"unit": row["unit"]}


def ordered(rows: Sequence[Row], *, sort: str = "", last: int | None = None) -> list[Row]:
    """Return the newest `last` rows in the order of the column `sort`; "-" in front reverses it.

    Raises UserError for a column that is not there. Rows without a value come last.
    """
    newest = list(rows)[-last:] if last else list(rows)
    if not sort:
        return newest
    names = {name: column.name for column in COLUMNS for name in (column.heading, column.name) if name}
    column = sort.removeprefix("-")
    if column not in names:
        raise UserError(f"sort={sort} is not a column{suggest(column, list(names))}")
    name = names[column]
    with_value = [row for row in newest if row[name] is not None]
    with_value.sort(key=lambda row: row[name], reverse=sort.startswith("-"))
    return with_value + [row for row in newest if row[name] is None]


def text(rows: Sequence[Row], *, wide: bool = False) -> str:
    """Return the table; all columns and whole names where `wide` or where stdout is no terminal."""
    wide = wide or not sys.stdout.isatty()
    cells = {column: column.cells(rows) for column in COLUMNS}
    if wide:
        headings = [column.name.replace("_", " ") for column in COLUMNS]
        right = [column.right for column in COLUMNS]
        return tables.table(headings, list(zip(*cells.values(), strict=True)), right=right, fold=False)
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

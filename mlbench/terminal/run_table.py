"""Build the table of `results list`: one line per run, with as many columns as the terminal can fit."""

import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from mlbench.config.errors import UserError, suggest
from mlbench.config.goal import Goal
from mlbench.record import fields
from mlbench.terminal import tables

STATUS = {  # as short as a narrow table needs it
    "goal_reached": "reached",
    "goal_not_reached": "missed",
    "interrupted": "stopped",
}
WIDEST = 36  # letters of a script in a terminal, unless --wide
Row = Mapping[str, Any]  # values of one run by name (analysis.run_index.IndexEntry.row)
# The order is that of importance: a narrow terminal gets the first ones. "run" is shown shortened, as "id".
COLUMNS = [field for field in fields.FIELDS if field.heading]
SCRIPT = next(field for field in COLUMNS if field.name == "script")


def summary(row: Row) -> dict[str, Any]:
    """Return every column's value by its name, for JSON."""
    beside = {name: row[name] for name in ("sample_unit", "contradictions")}
    return {field.column: row[field.name] for field in COLUMNS} | beside


def ordered(rows: Sequence[Row], *, sort: str = "", last: int | None = None) -> list[Row]:
    """Return the newest `last` rows in the order of the column `sort`. A leading "-" reverses it.

    Raises UserError for a missing column. Rows without a value come last.
    """
    newest = list(rows)[-last:] if last else list(rows)
    if not sort:
        return newest
    names = {name: field.name for field in COLUMNS for name in (field.heading, field.column)}
    column = sort.removeprefix("-")
    if column not in names:
        raise UserError(
            f"sort={sort} is not a column{suggest(column, list(names))}", hint="--wide prints all"
        )
    name = names[column]
    with_value = [row for row in newest if row[name] is not None]
    with_value.sort(key=lambda row: row[name], reverse=sort.startswith("-"))
    return with_value + [row for row in newest if row[name] is None]


def text(rows: Sequence[Row], *, wide: bool = False) -> str:
    """Return the table, with all columns and whole names if `wide` or if stdout is no terminal."""
    wide = wide or not sys.stdout.isatty()
    cells = {field: _cells(field, rows, short=not wide) for field in COLUMNS}
    values = [next((row[f.name] for row in rows if row[f.name] is not None), None) for f in COLUMNS]
    right = [isinstance(value, int | float) for value in values]
    if wide:
        headings = [field.column.replace("_", " ") for field in COLUMNS]
        return tables.table(headings, list(zip(*cells.values(), strict=True)), right=right, fold=False)
    cells[COLUMNS[0]] = short_ids(cells[COLUMNS[0]])
    cells[SCRIPT] = list(map(_cut, cells[SCRIPT]))  # names are copied into commands, so they stay whole
    some = [index for index, value in enumerate(values) if value is not None]  # no column of "-" alone
    headings = [COLUMNS[index].heading for index in some]
    columns = [cells[COLUMNS[index]] for index in some]
    shown = tables.fitting(headings, columns, shutil.get_terminal_size().columns)
    lines = list(zip(*columns[:shown], strict=True))
    return tables.table(headings[:shown], lines, right=[right[index] for index in some[:shown]], fold=False)


def _cells(field: fields.Field, rows: Sequence[Row], *, short: bool) -> list[str]:
    """Return a column's cells. Those of a measured value have its unit, unless it is in the heading."""
    name = field.name
    if name == "status":  # such a run counts nowhere
        labels = {row[name]: STATUS.get(row[name], row[name]) if short else row[name] for row in rows}
        return [f"{labels[row[name]]}{', contradictory' if row['contradictions'] else ''}" for row in rows]
    if field.unit in ("", field.heading):
        texts = {value: tables.cell(value) for value in {row[name] for row in rows}}  # mostly few
        return [texts[row[name]] for row in rows]
    units = [_units(row["sample_unit"], row["metric_unit"], *row["target"] or ()) for row in rows]
    cells = [
        tables.cell(None) if row[name] is None else field.quantity(row[name], unit)
        for row, unit in zip(rows, units, strict=True)
    ]
    if field.unit == "USD":
        return [
            f"{cell} elsewhere" if row["cost_elsewhere"] else cell
            for cell, row in zip(cells, rows, strict=True)
        ]
    return cells


@cache
def _units(samples: str, metric: str, *target: Any) -> fields.Units:
    return fields.Units(samples, metric, Goal(*target) if target else None)


def _cut(cell: str) -> str:
    """Return a script without its middle if it is long: arguments that differ are mostly the last ones."""
    return cell if len(cell) <= WIDEST else f"{cell[: WIDEST // 3]}...{cell[3 + WIDEST // 3 - WIDEST :]}"


def short_ids(names: Sequence[str]) -> list[str]:
    """Return for each run's name the shortest end, from a hyphen on, that no other name ends in."""
    counts = Counter(end for name in names for end in _ends(name))
    return [next((end for end in _ends(name) if counts[end] == 1), name) for name in names]


def _ends(name: str) -> list[str]:
    """Return the ends of a name from each of its hyphens on, shortest first, and the whole."""
    parts = name.split("-")
    return ["-".join(parts[start:]) for start in reversed(range(len(parts)))]

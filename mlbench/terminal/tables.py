"""The one table for terminal and pipes."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from mlbench.experiment import format

PIPE_WIDTH = 320  # columns, where the output is not a terminal that has a width


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[bool] = (), fold: bool = True
) -> str:
    """Return columns as wide as their widest cell; a terminal too narrow for them folds cells.

    `right` says for each column whether it is aligned to the right, as numbers are. Without `fold` lines are
    as long as they are.
    """
    console = Console()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for number, heading in enumerate(headings):
        justify = "right" if number < len(right) and right[number] else "left"
        grid.add_column(heading, overflow="fold", justify=justify)
    for row in rows:
        grid.add_row(*(format.printable(cell) for cell in row))
    wide = console if console.is_terminal and fold else Console(width=PIPE_WIDTH)
    with wide.capture() as captured:
        wide.print(grid, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return "missed" if math.isinf(value) else format.number(value)
    return str(value)

"""Print tables, the same for terminal and pipes."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from mlbench.record import format

GAP = 2  # blanks between two columns
LONG = 24  # letters; a longer word, such as a path, is no number and may be split


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[bool] = (), fold: bool = True
) -> str:
    """Return columns as wide as their widest cell. A narrower terminal folds cells between words.

    A terminal too narrow even for the words gets a line a cell: no number is ever split. `right` has for each
    column whether it is aligned to the right, as numbers are. Without `fold`, and if the output is no
    terminal, lines are as long as they are.
    """
    sides = [*right, *[False] * (len(headings) - len(right))]
    console = Console()
    if not (fold and console.is_terminal):
        columns = zip(headings, *rows, strict=True)
        aligned = [_aligned(column, right=side) for column, side in zip(columns, sides, strict=True)]
        return "\n".join((" " * GAP).join(line).rstrip() for line in zip(*aligned, strict=True))
    lines = [[*map(format.printable, row)] for row in (headings, *rows)]
    columns = [*zip(*lines, strict=True)]
    least = [max(min(cell_len(word), LONG) for cell in column for word in [*cell.split(), ""])
             for column in columns]  # fmt: skip
    room = console.width - GAP * (len(columns) - 1)
    if sum(least) > room:
        named = [[f"{name}: {cell}" for name, cell in zip(lines[0], row, strict=True)] for row in lines[1:]]
        return "\n\n".join(map("\n".join, named))
    widths = [max(map(cell_len, column)) for column in columns]
    while sum(widths) > room:
        widths[max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__)] -= 1
    grid = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="")
    for heading, side, width in zip(lines[0], sides, widths, strict=True):
        grid.add_column(heading, overflow="fold", justify="right" if side else "left", width=width)
    for row in lines[1:]:
        grid.add_row(*row)
    with console.capture() as captured:
        console.print(grid, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown, in which no cell can end its column."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def fitting(headings: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> int:
    """Return how many of the first columns `width` has room for, with their headings."""
    widths = [max(map(len, (heading, *cells))) for heading, cells in zip(headings, columns, strict=True)]
    ends = accumulate(widest + GAP for widest in widths)
    return sum(end - GAP <= width for end in ends)


def _aligned(column: Sequence[str], *, right: bool) -> list[str]:
    """Return the cells as a terminal may print them, with blanks up to the width of the widest."""
    different = dict.fromkeys(column)  # few in most columns; 100,000 lines are no rarity
    whole = "".join(different)
    if whole.isascii() and whole.isprintable():  # nearly always
        widest = max(map(len, different))
        padded = {cell: cell.rjust(widest) if right else cell.ljust(widest) for cell in different}
    else:
        texts = {cell: format.printable(cell) for cell in different}
        widest = max(map(cell_len, texts.values()))
        blanks = {cell: " " * (widest - cell_len(text)) for cell, text in texts.items()}
        padded = {cell: blanks[cell] + texts[cell] if right else texts[cell] + blanks[cell] for cell in texts}
    return list(map(padded.__getitem__, column))


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return "missed" if math.isinf(value) else format.number(value)
    return str(value)

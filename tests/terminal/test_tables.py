"""The one table of all commands, on terminals too narrow for it."""

from functools import partial

import pytest
from rich.console import Console

from mlbench.terminal import tables

ROWS = [
    ["time to accuracy / s", "0.0416", "12.822", "8.792 to 12.922", "independent"],
    ["samples/s", "2,130,313", "0.073", "0.072 to 0.085", "independent"],
]
HEADINGS = ("median of", "A", "B / A", "95 % interval", "samples")


@pytest.mark.parametrize("width", range(32, 90))
def test_no_number_and_no_word_is_ever_split(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "Console", partial(Console, force_terminal=True, width=width))
    printed = tables.table(HEADINGS, ROWS, right=[False, True])
    assert max(map(len, printed.splitlines())) <= width
    words = [word for row in ROWS for cell in row for word in cell.split()]
    assert sorted(set(words) - set(printed.replace(":", " ").split())) == []


def test_a_path_may_be_split_where_a_number_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "Console", partial(Console, force_terminal=True, width=40))
    path = "/data/" + 50 * "x"
    printed = tables.table(("folder", "bytes"), [[path, "2,130,313"]])
    assert "2,130,313" in printed and path not in printed
    assert path in printed.replace("\n", "").replace("  2,130,313", "")

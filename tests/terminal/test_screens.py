"""What a real terminal shows of measured runs: nothing is cut, the answer is on one screen."""

import os
import re
import sys

import pytest
import sample
import screenshots
import terminals
from conftest import ROOT
from rich.text import Text

SCREENS = {
    "card": ["show", "resnet20-w2-69544d95"],
    "list": ["list", "last=12"],
    "compare": ["compare", "workers=1", "workers=2", "task=resnet20"],
}
COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCREENS)
def test_a_terminal_shows_the_answer_on_one_screen(name: str) -> None:
    columns, rows = terminals.SMALL
    command = [sys.executable, "-m", "mlbench.results", *SCREENS[name], f"output_root={sample.SAMPLE.name}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = terminals.show(command, (columns, rows), env=env, cwd=sample.SAMPLE.parent)
    text = shown.written
    assert shown.code == 0, text
    lines = COLOURS.sub("", text).splitlines()
    assert len(lines) < rows
    # Commands to copy are the only lines that may be longer.
    assert [line for line in lines if len(line) > columns and "python -m" not in line] == []
    answers = {"card": "GOAL REACHED", "list": "resnet20", "compare": "no difference shown"}
    assert answers[name] in "\n".join(lines)
    assert str(ROOT) not in text  # the pictures show no path of the machine that made them
    screenshots.terminal(Text.from_ansi(text), f"{name}-{columns}x{rows}", columns)

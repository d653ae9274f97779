"""What real terminals of two sizes show of measured runs: nothing is cut, the answer is on one screen."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
import sample
import screenshots
from conftest import ROOT

SIZES = ((80, 24), (120, 40))  # columns, rows
SCREENS = {
    "card": ["show", "resnet20-w2-51665efb"],
    "list": ["list"],
    "compare": ["compare", "workers=1", "workers=2", "task=resnet20"],
}
COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def shown(words: list[str], columns: int, rows: int) -> str:
    """Return what a command writes on a terminal of this size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    command = [sys.executable, "-m", "mlbench.results", *words, f"output_root={sample.SAMPLE.name}"]
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        command, stdout=theirs, stderr=theirs, stdin=theirs, env=env, cwd=sample.SAMPLE.parent
    ) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            text += block
    os.close(ours)
    assert process.returncode == 0, text
    return text.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(("columns", "rows"), SIZES)
@pytest.mark.parametrize("name", SCREENS)
def test_a_terminal_shows_the_answer_on_one_screen(name: str, columns: int, rows: int) -> None:
    text = shown(SCREENS[name], columns, rows)
    lines = COLOURS.sub("", text).splitlines()
    assert len(lines) < rows
    # Commands to copy are the only lines that may be longer.
    assert [line for line in lines if len(line) > columns and "python -m" not in line] == []
    assert {"card": "GOAL REACHED", "list": "resnet20", "compare": "B is"}[name] in "\n".join(lines)
    assert str(ROOT) not in text  # the pictures show no path of the machine that made them
    screenshots.terminal(text, f"{name}-{columns}x{rows}", columns)

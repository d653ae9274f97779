"""Real terminals: a command on a pseudo-terminal of a given size, and what its screen showed."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyte
from rich.text import Text

STILL_S = 0.05  # s without output after which a frame is complete
NAMES = {"brown": "yellow", "brightbrown": "bright_yellow"}  # pyte's names that are not rich's
SMALL, LARGE = (80, 24), (120, 40)  # columns, rows


@dataclass(frozen=True)
class Shown:
    """What a command wrote: all of it, and the last complete screen that was looked for ("" for none)."""

    code: int
    written: str
    frame: Text


def show(
    command: Sequence[str],
    size: tuple[int, int],
    *,
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    frame: Callable[[str], bool] = lambda screen: False,
    timeout_s: float = 600,
) -> Shown:
    """Run a command on a terminal; keep the last screen of which `frame` is true.

    `size`: columns and rows.
    """
    columns, rows = size
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    hidden = ("COLUMNS", "LINES", "NO_COLOR")
    env = {name: value for name, value in env.items() if name not in hidden} | {"TERM": "xterm-256color"}
    written, seen, end = b"", Text(), time.monotonic() + timeout_s
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=cwd, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            while block := _read(ours):
                written += block
                stream.feed(block)
                if not select.select([ours], [], [], STILL_S)[0] and frame("\n".join(screen.display)):
                    seen = _text(screen)
                assert time.monotonic() < end, "\n".join(screen.display)
        finally:
            os.close(ours)  # hangs up
    return Shown(process.returncode, written.decode().replace("\r\n", "\n"), seen)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def _text(screen: pyte.Screen) -> Text:
    """Return a screen with its colours, without empty lines at the end."""
    lines = []
    for row in range(screen.lines):
        line = Text()
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        for style, some in groupby(cells, _style):
            line.append("".join(cell.data for cell in some), style=style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def _style(cell: pyte.screens.Char) -> str:
    styles = ["bold"] if cell.bold else []
    if re.fullmatch("[0-9a-f]{6}", cell.fg):
        styles.append(f"#{cell.fg}")
    elif cell.fg != "default":
        styles.append(NAMES.get(cell.fg, cell.fg.replace("bright", "bright_")))
    return " ".join(styles)

"""A command on a controlling terminal of its own: what it shows, and what is typed there."""

import fcntl
import os
import pty
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from commands import PATIENCE_S

SIZE = (30, 100)  # rows, columns


def typed(
    command: Sequence[str], answers: Sequence[tuple[str, str]] = (), *, cwd: Path, env: Mapping[str, str] = {}
) -> tuple[int, str]:
    """Run a command in a terminal; return its exit code and what it showed.

    answers: pairs of a text that it shows, and what is typed then, or the size that the window gets.
    """
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(cwd)
        os.execvpe(command[0], list(command), {**os.environ, "TERM": "xterm-256color", **env})
    resize(terminal, *SIZE)
    shown, waiting, end = b"", list(answers), time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if waiting and waiting[0][0].encode() in shown:
            os.write(terminal, waiting.pop(0)[1].encode())
        try:
            block = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        shown += block
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode().replace("\r\n", "\n")


def resize(terminal: int, rows: int, columns: int) -> None:
    """Give a terminal's window a size."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

"""Handle standard streams that are closed, full or broken, so that a command goes on without them."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

discarded: list[TextIO] = []  # what was written to these is lost


def open_standard_streams() -> None:
    """Give a command that was started with a closed stdin, stdout or stderr an empty one in its place.

    The next file that is opened would get its number, and whatever prints would write into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, mode))


def discard(stream: TextIO) -> None:
    """Discard the unwritten output of a full or broken stream, so that no exit fails on it."""
    discarded.append(stream)
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """End quietly when the reader of stdout, e.g. head, has left (docs.python.org, library/signal)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        stdout = select.poll()
        stdout.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _, event in stdout.poll(0)):
            raise  # another pipe or socket broke
        discard(sys.stdout)

"""Standard streams that are closed, full or broken: a command goes on without them."""

import os
import sys
from contextlib import suppress
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
    """Send what is still written to a stream that is full or broken nowhere, so that no exit fails on it."""
    discarded.append(stream)
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

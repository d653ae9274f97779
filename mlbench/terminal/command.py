"""How every command ends: with an exit code, and with one sentence instead of a traceback."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlbench.experiment.errors import UserError

FAILED = 1
USER_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells expect


def ended(body: Callable[[], int]) -> int:
    """Run the body of a command; return its exit code, or that of a user's mistake or of a Ctrl-C."""
    try:
        return body()
    except UserError as error:
        print(f"mlbench: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("mlbench: interrupted; the same command goes on", file=sys.stderr)
        return INTERRUPTED


@contextmanager
def readers_may_leave() -> Iterator[None]:
    """Let stdout be a pipe whose reader, e.g. head, has seen enough; as in Python's note on SIGPIPE."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

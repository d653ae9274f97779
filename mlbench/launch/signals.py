"""How a command ends before its time: by Ctrl-C, by SIGTERM, or with the process that started it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PARENT_PID = "MLBENCH_PARENT"  # environment variable: the process without which a command must not go on
PARENT_POLL_S = 0.5  # s between two looks whether it lives


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM, and SIGINT even where a shell has it ignored, end the block as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def exit_with_parent() -> None:
    """Kill this process soon after its parent died, where the environment names that parent.

    A sweep that is killed must leave no run behind that goes on measuring. Polled, because Linux's own
    notice (prctl, PR_SET_PDEATHSIG) follows the parent's thread, not its process, and exists on Linux only.
    """
    parent = os.environ.pop(PARENT_PID, None)
    if parent is not None:
        threading.Thread(target=_watch, args=(int(parent),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    wait = threading.Event().wait
    while os.getppid() == parent:
        wait(PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)

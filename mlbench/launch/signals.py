"""How a command ends before its time: by Ctrl-C, SIGTERM or SIGHUP, or with the process that started it."""

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlbench import clock

PARENT_PID = "MLBENCH_PARENT"  # environment variable: the process without which a command must not go on
PARENT_POLL_S = 0.5  # s between two looks whether it lives
REPEAT_S = 30.0  # s after a signal in which others are ignored: the command is writing its record
AGAIN_S = 1.0  # s after a signal in which another is the same one, which e.g. `uv run` has passed on, too
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_deadlines: list[float] = []  # until when the signals after the first are ignored
_numbers: list[int] = []  # of those that were not


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM, SIGHUP, and SIGINT even if a shell has it ignored, end the block as Ctrl-C does.

    SIGHUP stays ignored if it is ignored already (nohup). After the first signal others are ignored for
    REPEAT_S.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    previous = {number: signal.getsignal(number) for number in SIGNALS}
    if previous[signal.SIGHUP] is signal.SIG_IGN:
        del previous[signal.SIGHUP]
    if _interrupt not in previous.values():
        _deadlines.clear()
    for number in previous:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Let signals wait until the block has ended, e.g. while a process is started and not yet known."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    previous = {number: signal.signal(number, lambda number, _: came.append(number)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


@contextmanager
def repeatable() -> Iterator[int]:
    """Yield the number of the signal that came. In the block one more, AGAIN_S later, ends the block, too."""
    _deadlines.append(clock.monotonic() + AGAIN_S)
    try:
        yield _numbers[-1] if _numbers else signal.SIGINT
    finally:
        _deadlines.append(clock.monotonic() + REPEAT_S)


def _interrupt(number: int, _: Any) -> None:
    if not _deadlines:
        atexit.register(_ignore_signals)  # runs before what other libraries registered earlier, as Ray
    elif clock.monotonic() < _deadlines[-1]:
        return
    _deadlines.append(clock.monotonic() + REPEAT_S)
    _numbers.append(number)
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def exit_with_parent() -> None:
    """Kill this process soon after its parent died, if the environment names that parent.

    A sweep that is killed must leave no run behind that goes on measuring. Polled, because Linux's notice
    (prctl, PR_SET_PDEATHSIG) follows the parent's thread, not its process, and exists on Linux only.
    """
    parent = os.environ.pop(PARENT_PID, None)
    if parent is not None:
        threading.Thread(target=_watch, args=(int(parent),), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    wait = threading.Event().wait
    while os.getppid() == parent:
        wait(PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)

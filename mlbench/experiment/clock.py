"""Wall and monotonic clocks, and when the command started."""

import datetime
import time

BEGAN = time.time()  # s, wall clock: mlbench/__init__.py imports this module before anything else
BOOT_S = 2.0  # s that Python may take to come to mlbench's first import, from a cold disk, too


def wall() -> float:
    """Return the wall clock in seconds since 1970, comparable between processes of one machine."""
    return time.time()


def monotonic() -> float:
    """Return the monotonic host clock in seconds, for durations inside one process."""
    return time.perf_counter()


def iso(seconds: float) -> str:
    """Return a wall-clock time as ISO 8601 in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def process_start() -> float:
    """Return when this command was started (wall clock, s), before Python imported anything.

    It is when the process was started. But a shell that becomes the command (exec, which also ends
    `bash -c "pip install ... && python -m mlbench.run"`) may have run for long before: where mlbench's first
    import came more than BOOT_S later, that import is taken, which is some tens of milliseconds late.
    """
    import psutil

    started = psutil.Process().create_time()
    return started if BEGAN - started < BOOT_S else BEGAN

"""Provide wall and monotonic clocks, and the time when the command started.

A wall clock may be set while a run lasts (NTP on a new machine). So a process reads it once, when mlbench is
imported. From there on `wall` counts on the clock since boot, which cannot be set. The processes of a run on
one host count from the driver's reading (`adopt`). So the difference of any two of their stamps is a
duration.
"""

import datetime
import os
import time
from pathlib import Path
from typing import NamedTuple

from mlbench.probe.clock import host_clock_id, monotonic  # noqa: F401

BOOT_S = 2.0  # s that Python may take to come to mlbench's first import, from a cold disk, too


class ClockEpoch(NamedTuple):
    """When the clock `clock_id`, which counts from a host's boot, stood at 0, s since 1970."""

    clock_id: str
    seconds: float


def wall() -> float:
    """Return the wall clock in seconds since 1970, comparable between the processes of a run on one host."""
    return _epoch.seconds + _since_boot()


def system() -> float:
    """Return the wall clock as it is set now, s since 1970, which is what the kernel stamps files with."""
    return time.time()


def iso(seconds: float) -> str:
    """Return a wall-clock time as ISO 8601 in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def epoch() -> ClockEpoch:
    """Return the epoch from which `wall` counts here, for other processes of the run."""
    return _epoch


def adopt(epoch: ClockEpoch) -> None:
    """Let `wall` count as in the process that `epoch` is of. On another host nothing changes."""
    global _epoch
    if epoch.clock_id == _epoch.clock_id:
        _epoch = epoch


def process_start() -> float:
    """Return when this command was started (wall clock, s), before Python imported anything.

    It is when the process was started. But a shell that becomes the command may have run for long before
    (exec, which also ends `bash -c "pip install ... && python -m mlbench.run"`). If mlbench's first import
    came more than BOOT_S later, that import is taken, which is some tens of milliseconds late.
    """
    # Not psutil's create_time: it adds the boot's time in whole seconds, so it is up to 1 s early.
    started = started_s()
    return _epoch.seconds + (started if _IMPORTED - started < BOOT_S else _IMPORTED)


def started_s(pid: int | str = "self") -> float:
    """Return when a process was started, s since the boot, whatever the wall clock was set to.

    Raises OSError if there is no such process.
    """
    ticks = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]  # proc_pid_stat(5)
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def _since_boot() -> float:
    """Return the seconds since boot. Unlike `monotonic` this clock goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _boot(looks: int = 5) -> float:
    """Return when the clock since boot stood at 0, s since 1970, from the look that was interrupted least."""
    spans: list[tuple[float, float]] = []
    for _ in range(looks):
        before, now, after = _since_boot(), time.time(), _since_boot()
        spans.append((after - before, now - (before + after) / 2))
    return min(spans)[1]


_IMPORTED = _since_boot()  # mlbench/__init__.py imports this module before anything else
_epoch = ClockEpoch(host_clock_id(), _boot())

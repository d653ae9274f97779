"""Wall and monotonic clocks, and when the command started.

A wall clock may be set while a run lasts (NTP on a new machine). So a process looks at it once, when mlbench
is imported; from there on `wall` counts on the clock since boot, which nobody sets. The processes of a run on
one host count from the driver's look (`adopt`), so the difference of any two of their stamps is a duration.
"""

import datetime
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

BOOT_S = 2.0  # s that Python may take to come to mlbench's first import, from a cold disk, too


class ClockEpoch(NamedTuple):
    """When the clock `clock_id`, which counts from a host's boot, stood at 0, s since 1970."""

    clock_id: str
    seconds: float


def monotonic() -> float:
    """Return the monotonic host clock in seconds, for durations inside one process."""
    return time.perf_counter()


def wall() -> float:
    """Return the wall clock in seconds since 1970, comparable between the processes of a run on one host."""
    return _epoch.seconds + _since_boot()


def system() -> float:
    """Return the wall clock as it is set now, s since 1970: what the kernel stamps files with."""
    return time.time()


def iso(seconds: float) -> str:
    """Return a wall-clock time as ISO 8601 in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def epoch() -> ClockEpoch:
    """Return what `wall` counts from here, for other processes of the run."""
    return _epoch


def adopt(epoch: ClockEpoch) -> None:
    """Let `wall` count as in the process that `epoch` is of; on another host nothing changes."""
    global _epoch
    if epoch.clock_id == _epoch.clock_id:
        _epoch = epoch


def process_start() -> float:
    """Return when this command was started (wall clock, s), before Python imported anything.

    It is when the process was started. But a shell that becomes the command (exec, which also ends
    `bash -c "pip install ... && python -m mlbench.run"`) may have run for long before: where mlbench's first
    import came more than BOOT_S later, that import is taken, which is some tens of milliseconds late.
    """
    # Not psutil's create_time: it adds the boot's time in whole seconds, so it is up to 1 s early.
    started = started_s()
    return _epoch.seconds + (started if _IMPORTED - started < BOOT_S else _IMPORTED)


def started_s(pid: int | str = "self") -> float:
    """Return when a process was started, s since the boot; no step of the wall clock changes it.

    Raises OSError where no such process is.
    """
    ticks = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]  # proc_pid_stat(5)
    return int(ticks) / os.sysconf("SC_CLK_TCK")


def host_clock_id() -> str:
    """Return what processes have in common whose monotonic clocks are one: the boot and the namespace.

    In the place of what cannot be read stands the host's name: two hosts are never taken for one.
    """
    boot = namespace = os.uname().nodename
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/time").readlink())
    return f"{boot} {namespace}"


def _since_boot() -> float:
    """Return the seconds since boot; unlike `monotonic` it goes on while the machine sleeps."""
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

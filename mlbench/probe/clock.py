"""The clock that a measured script and the command that measures it have in common."""

import os
import time
from contextlib import suppress
from pathlib import Path

monotonic = time.perf_counter  # s, for durations inside one process


def host_clock_id() -> str:
    """Return what processes have in common whose monotonic clocks are one: the boot and the namespace.

    If it cannot be read, the host's name is used instead: two hosts are never taken for one.
    """
    boot = namespace = os.uname().nodename
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/time")
    return f"{boot} {namespace}"

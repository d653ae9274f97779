"""Control groups with a CPU quota, in both versions of Linux's.

Linux: Documentation/admin-guide/cgroup-v1 (cpu.cfs_quota_us) and cgroup-v2.rst (cpu.max).
"""

from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def controller() -> Path | None:
    """Return the folder below which control groups with a CPU quota are made; None where there is none."""
    for name in ("cpu", "cpu,cpuacct"):
        if (ROOT / name / "cgroup.procs").exists():
            return ROOT / name
    return ROOT if (ROOT / "cgroup.controllers").exists() else None


def lift(group: Path) -> None:
    """Take the quota from a control group: what is killed there needs CPU time to end."""
    for name, unlimited in (("cpu.cfs_quota_us", "-1"), ("cpu.max", "max")):
        if (group / name).exists():  # of the two versions of control groups each has one of the files
            with suppress(OSError):
                (group / name).write_text(unlimited)

"""CPU shares of emulated hosts: one control group a host with a quota.

Linux: Documentation/admin-guide/cgroup-v1 (cpu.cfs_quota_us) and cgroup-v2.rst (cpu.max).
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mlbench.clusters import reaper
from mlbench.config.errors import UserError

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000  # us in which a host gets its share; the kernel's 100 ms would stop a step for as long


def controller() -> Path | None:
    """Return the folder below which control groups with a CPU quota are made; None where there is none."""
    for name in ("cpu", "cpu,cpuacct"):
        if (ROOT / name / "cgroup.procs").exists():
            return ROOT / name
    return ROOT if (ROOT / "cgroup.controllers").exists() else None


def limited(words: Sequence[str], *, host: int, cpus: float) -> list[str]:
    """Make a host's control group with `cpus` CPUs; return the command that runs `words` in it."""
    root = controller()
    if root is None:
        raise UserError("network.cpus: this machine has no control groups", hint="leave CPU shares out")
    group = root / f"{reaper.PREFIX}{reaper.owner()}" / f"host{host}"
    try:
        group.mkdir(parents=True)
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(round(cpus * PERIOD_US)))
        else:
            for folder in (root, group.parent):
                (folder / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{round(cpus * PERIOD_US)} {PERIOD_US}")
    except OSError as error:
        raise UserError(
            f"network.cpus: this process cannot limit CPUs with {group}: {error.strerror}",
            hint="leave network.cpus and network.slow_cpus out",
        ) from error
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *words]


def lift(group: Path) -> None:
    """Take the quota from a host's control group: what is killed there needs CPU time to end."""
    for name, unlimited in (("cpu.cfs_quota_us", "-1"), ("cpu.max", "max")):
        if (group / name).exists():  # of the two versions of control groups each has one of the files
            with suppress(OSError):
                (group / name).write_text(unlimited)

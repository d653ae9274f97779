"""Limit the CPU shares of emulated hosts: one control group a host with a quota."""

from collections.abc import Sequence

from mlbench.clusters import reaper
from mlbench.config.errors import UserError

PERIOD_US = 10_000  # us in which a host gets its share; the kernel's 100 ms would stop a step for as long


def limited(arguments: Sequence[str], *, host: int, cpus: float) -> list[str]:
    """Make a host's control group with `cpus` CPUs. Return the command that runs `arguments` in it."""
    root = reaper.controller()
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
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *arguments]

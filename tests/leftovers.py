"""What a test could leave behind on this machine; other tests may run beside it."""

import os

import psutil

from mlbench.clusters import processes
from mlbench.clusters.emulation import reaper


def leftovers() -> set[str]:
    """Return processes, control groups, interfaces and shared memory of this process or of dead ones."""
    keepers = ("resource_tracker", "forkserver", "loky")  # they live as long as the process that uses them
    left = set()
    for child in processes.children(psutil.Process()):
        words = " ".join(words_of(child))
        if processes.lives(child) and not any(word in words for word in keepers):
            left.add(f"process {child.pid} {words}")
    owners = {owner for owner, _ in reaper.processes()}
    owners |= {group.name.removeprefix(reaper.PREFIX) for group in reaper._groups()}
    left |= {f"emulated hosts of {one}" for one in owners if one == reaper.owner() or not reaper._lives(one)}
    left |= {f"interface {name}" for name in {"control", "link"} & psutil.net_if_addrs().keys()}
    return left | {f"shared memory {name}" for name in os.listdir("/dev/shm") if name.startswith("mpich")}


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []

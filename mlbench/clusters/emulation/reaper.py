"""What emulated hosts could leave behind: processes and control groups, each with its owner's name.

Networks vanish with the last process in them (namespace.py). The owner is the process that made the hosts,
by its id and its time of creation; what has a living owner is never touched.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from mlbench.clusters.processes import create_time
from mlbench.clusters.processes import end as end_processes
from mlbench.experiment import clock

MARK = "MLBENCH_EMULATION"  # environment variable of all processes on emulated hosts
PREFIX = "mlbench-"  # of control groups
LEAVE_S = 20.0  # s that killed processes have to leave their control group; torch's memory takes them a while
POLL_S = 0.05  # s between two attempts to remove it


def owner() -> str:
    """Return this process's name as an owner."""
    return f"{os.getpid()}-{int(psutil.Process().create_time() * 100)}"


def environment() -> Mapping[str, str]:
    """Return the variables that mark a process as this one's."""
    return {MARK: owner()}


def processes(name: str | None = None) -> list[tuple[str, psutil.Process]]:
    """Return (owner, process) of all emulated hosts; of one owner if it is given."""
    pairs = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            mark = process.environ().get(MARK)
            if mark and name in (None, mark):
                pairs.append((mark, process))
    return pairs


def end(name: str, *, but: int | None = None) -> None:
    """End what an owner has on emulated hosts, `but` one process, and remove its control groups."""
    from mlbench.clusters.emulation import cpu_share

    groups = [group for group in _groups() if group.name == PREFIX + name]
    hosts = [host for group in groups for host in group.iterdir() if host.is_dir()]
    for host in hosts:
        cpu_share.lift(host)
    deadline = clock.monotonic() + LEAVE_S
    while (running := {one for _, one in processes(name) if one.pid != but}) and clock.monotonic() < deadline:
        for process in running:  # others start while these are looked for, so it looks again
            with suppress(psutil.NoSuchProcess):
                process.kill()
        end_processes(running)
        for process in running:  # an ended child that nobody waited for holds its control group
            with suppress(psutil.TimeoutExpired):
                process.wait(timeout=0)
    for folder in (*hosts, *groups):
        _remove(folder, deadline)


def _remove(group: Path, deadline: float) -> None:
    """End what is still in a control group, and remove it; after the deadline the next reaper does.

    A process that has set its title may have written over the environment by which it is known.
    """
    while group.exists():
        with suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        with suppress(OSError):
            group.rmdir()
            return
        if clock.monotonic() > deadline:
            return
        time.sleep(POLL_S)


def reap() -> list[str]:
    """End what owners that have died left behind; return their names."""
    names = {name for name, _ in processes()} | {group.name.removeprefix(PREFIX) for group in _groups()}
    dead = sorted(name for name in names if not _lives(name))
    for name in dead:
        end(name)
    return dead


def _lives(name: str) -> bool:
    """Return whether the owner runs; a name that is none of ours counts as alive."""
    pid, _, created = name.partition("-")
    if not (pid.isdigit() and created.isdigit()):
        return True
    seconds = create_time(int(pid))
    return seconds is not None and int(seconds * 100) == int(created)


def _groups() -> Iterator[Path]:
    from mlbench.clusters.emulation.cpu_share import controller

    root = controller()
    yield from (path for path in (root.glob(f"{PREFIX}*") if root else ()) if path.is_dir())

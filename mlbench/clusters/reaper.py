"""Remove the remains of killed commands: processes, control groups, and temporary folders.

Processes and control groups have their owner's name. It is that of the command, by its process id, its time
of creation and the namespace of its id. The name of a Ray that outlives commands is its folder. The reaper
never touches anything with a living owner. The networks of emulated hosts vanish with the last process in
them.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from mlbench import clock
from mlbench.clusters.processes import SERVERS, by_name, create_time, kill, of_session, with_variable
from mlbench.clusters.processes import end as end_processes
from mlbench.record import temporary_folder

MARK = "MLBENCH_OWNER"  # environment variable of all processes of a Ray or of emulated hosts
PREFIX = "mlbench-"  # of control groups
CONTROL_GROUPS = Path("/sys/fs/cgroup")
LEAVE_S = 20.0  # s in which killed processes leave their control group; torch's memory takes them a while
POLL_S = 0.05  # s between two attempts to remove it


def owner(pid: int | None = None) -> str:
    """Return a process's name as an owner. None: this process's."""
    pid = os.getpid() if pid is None else pid
    # The "b" (since the boot) keeps 0.2 from reading it as one of its names, which counted since 1970.
    return f"{pid}-b{round(clock.started_s(pid) * 100)}-{pid_namespace()}"


def pid_namespace() -> int:
    """Return the number of the namespace in which process ids count, or 0 if the system has none."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def environment(folder: Path | None = None) -> Mapping[str, str]:
    """Return the variables that mark a process as this one's, and give it a folder for temporary files."""
    return {MARK: owner()} | ({"TMPDIR": str(folder)} if folder else {})


@contextmanager
def marked(folder: Path) -> Iterator[None]:
    """Mark processes that this one starts in the block, and give it a folder for temporary files."""
    tempfile.gettempdir()  # remembered from its first call
    before = {name: os.environ.get(name) for name in (MARK, "TMPDIR")}
    os.environ.update(environment(folder))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def processes(name: str | None = None) -> list[tuple[str, psutil.Process]]:
    """Return (owner, process) of all processes that have an owner, or of one owner if it is given."""
    return with_variable(MARK, name)


def end(name: str, *, but: int | None = None) -> None:
    """End an owner's processes, except `but`, and remove its control groups."""
    groups = [group for group in _groups() if group.name == PREFIX + name]
    hosts = [host for group in groups for host in group.iterdir() if host.is_dir()]
    for host in hosts:
        _lift_quota(host)
    deadline = clock.monotonic() + LEAVE_S
    empty_scans = 0  # in a row; one proves nothing: a process that is just being executed has no environment
    while empty_scans < 2 and clock.monotonic() < deadline:
        running = {process for _, process in processes(name) if process.pid != but}
        kill(running)
        end_processes(running)
        for process in running:  # an ended child without a wait holds its control group
            with suppress(psutil.TimeoutExpired):
                process.wait(timeout=0)
        empty_scans = 0 if running else empty_scans + 1
    for folder in (*hosts, *groups):
        _remove(folder, deadline)


def _remove(group: Path, deadline: float) -> None:
    """End the rest of a control group, and remove it. After the deadline the next reaper does.

    A process that has set its title may have overwritten the environment that identifies it.
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


def dead() -> list[str]:
    """Return the names of owners that were killed and have left processes or control groups."""
    names = {name for name, _ in processes()} | {group.name.removeprefix(PREFIX) for group in _groups()}
    return sorted(name for name in names if not _lives(name))


def remains() -> list[str]:
    """Return the names of what `reap` would end and remove, without any change."""
    folders = [path for path in temporary_folder.abandoned() if not by_name(of_folder(path), SERVERS[0])]
    return dead() + list(map(str, folders))


def reap() -> list[str]:
    """End and remove the remains of killed commands. Return the owners' names and the folders."""
    owners = dead()
    for name in owners:
        end(name)
    return owners + [str(folder) for folder in temporary_folder.abandoned() if _removed(folder)]


def reap_if_any() -> None:
    """Call `reap` if a killed command has left a folder.

    Every Ray has one. Without any there is nothing else, and a look at all processes would delay a start.
    """
    if any(True for _ in temporary_folder.abandoned()):
        reap()


def of_folder(folder: Path) -> set[psutil.Process]:
    """Return the processes of the Ray whose files are in this folder.

    Not all of them name it: Ray's client server does not, and tries for a minute to reach servers that were
    killed (2.60). Those of a Ray that outlives commands have the folder as their mark.
    """
    return of_session(f"{folder}/").union(process for _, process in processes(str(folder)))


def _removed(folder: Path) -> bool:
    """Remove an abandoned folder, once the rest of its Ray has ended.

    Not that of a Ray with a running server: that of `mlbench.cluster start` has no living owner.
    """
    left = of_folder(folder)
    if by_name(left, SERVERS[0]):
        return False
    kill(left)
    end_processes(left)
    temporary_folder.remove(folder)
    return True


def _lives(name: str) -> bool:
    """Return whether the owner runs. A foreign name, or a container's, counts as alive."""
    pid, created, namespace, *_ = (*name.split("-"), "", "")
    known = pid.isdigit() and created[:1] == "b" and created[1:].isdigit()
    if not known or namespace != str(pid_namespace()):
        return True
    seconds = create_time(int(pid))
    return seconds is not None and round(seconds * 100) == int(created[1:])


def controller() -> Path | None:
    """Return the folder for control groups with a CPU quota, or None without one.

    Linux: Documentation/admin-guide/cgroup-v1 (cpu.cfs_quota_us) and cgroup-v2.rst (cpu.max).
    """
    for name in ("cpu", "cpu,cpuacct"):
        if (CONTROL_GROUPS / name / "cgroup.procs").exists():
            return CONTROL_GROUPS / name
    return CONTROL_GROUPS if (CONTROL_GROUPS / "cgroup.controllers").exists() else None


def _lift_quota(group: Path) -> None:
    """Remove the quota of a control group: killed processes need CPU time to end."""
    for name, unlimited in (("cpu.cfs_quota_us", "-1"), ("cpu.max", "max")):
        if (group / name).exists():  # each version of control groups has one of the two files
            with suppress(OSError):
                (group / name).write_text(unlimited)


def _groups() -> Iterator[Path]:
    root = controller()
    yield from (path for path in (root.glob(f"{PREFIX}*") if root else ()) if path.is_dir())

"""Find processes on this machine: those of one Ray, by the folder of its session, and their families."""

import os
import re
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

from mlbench import clock

SERVERS = ("gcs_server", "raylet")  # Ray's two servers, by the names of their processes
SESSION = re.compile(r"/[^ =]*/session_[^/ ]+")  # the folder in the command line of every process of one Ray
STOP_S = 2  # s that processes have to end; Ray's two servers do not end by themselves within 10 s (2.60)


def session_of(process: psutil.Process) -> str | None:
    """Return the folder of the Ray session in a process's command line, or None without one."""
    with suppress(psutil.Error):
        match = SESSION.search(" ".join(process.cmdline()))
        return match[0] if match else None
    return None


def of_session(session: str) -> set[psutil.Process]:
    """Return the processes of the Ray whose session has this folder, and all below them.

    A program that looks at the folder, e.g. `tail -f` of a log there, does not count.
    """
    ray = find_spec("ray")
    if ray is None or ray.origin is None:
        return set()
    package = str(Path(ray.origin).parent)
    commands = ((process.pid, process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    # with all below them, as workers take other names
    return below(
        pid for pid, command in commands if package in " ".join(command[:3]) and session in " ".join(command)
    )


def below(pids: Iterable[int]) -> set[psutil.Process]:
    """Return the processes with these numbers, and all below them."""
    family: set[psutil.Process] = set()
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            family.add(process)
            family.update(process.children(recursive=True))
    return family


def lineage(pid: int) -> set[int]:
    """Return the number of a process and those of all above it. Empty if there is none here."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return {pid, *(parent.pid for parent in process.parents())}
    return set()


def by_name(some: Iterable[psutil.Process], *names: str) -> tuple[tuple[str, psutil.Process], ...]:
    """Return (name, process) of those with one of these names."""
    result = []
    for process in some:
        with suppress(psutil.Error):
            if process.name() in names:
                result.append((process.name(), process))
    return tuple(result)


def of_group(number: int) -> list[psutil.Process]:
    """Return the running processes of a process group."""
    group: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == number and lives(process):
                group.append(process)
    return group


def with_variable(name: str, value: str | None = None) -> list[tuple[str, psutil.Process]]:
    """Return (value, process) of all processes that have this environment variable, or this value of it."""
    pairs = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            text = process.environ().get(name)
            if text and value in (None, text):
                pairs.append((text, process))
    return pairs


def lives(process: psutil.Process) -> bool:
    """Return whether the process runs. An ended one that was not waited for does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stopped(pid: int) -> bool:
    """Return whether this machine has a Ray worker with this number that a signal has stopped."""
    with suppress(psutil.Error, ValueError):
        process = psutil.Process(pid)
        return process.name().startswith("ray::") and process.status() == psutil.STATUS_STOPPED
    return False


def create_time(pid: int) -> float | None:
    """Return the start of the process with this number, s since the boot, or None if none runs.

    Also None for another user's process if the system hides those (hidepid=1, proc(5)): it is not of this
    user. psutil's time is since 1970, so after a step of the clock the process would look like another one.
    """
    with suppress(psutil.Error, OSError):
        return clock.started_s(pid) if lives(psutil.Process(pid)) else None
    return None


def runs(pid: int, created: float | None) -> bool:
    """Return whether the process that got this number at that time still runs. Numbers are used again."""
    return created is not None and create_time(pid) == created


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill these processes, of which some may have ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def end(processes: Collection[psutil.Process]) -> None:
    """Wait STOP_S for processes that must end, and kill those that have not."""
    # If orphans are not reaped (a container without init) an ended process stays as a zombie.
    waits = 10 * STOP_S
    while waits and any(lives(process) for process in processes):
        time.sleep(0.1)
        waits -= 1
    kill(filter(lives, processes))

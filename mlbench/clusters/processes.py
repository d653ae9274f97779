"""Processes on this machine: those of one Ray, which name its session's folder, and their families."""

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
SESSION = re.compile(r"/[^ =]*/session_[^/ ]+")  # the folder that every process of one Ray names
STOP_S = 2  # s that processes have to end; Ray's two servers do not end by themselves within 10 s (2.60)


def session_of(process: psutil.Process) -> str | None:
    """Return the folder of the Ray session that a process names; None where it names none."""
    with suppress(psutil.Error):
        match = SESSION.search(" ".join(process.cmdline()))
        return match[0] if match else None
    return None


def of_session(session: str) -> set[psutil.Process]:
    """Return the processes of the Ray whose session has this folder, and all below them.

    A program that looks at the folder, e.g. `tail -f` of a log there, is none of them.
    """
    package = str(Path(find_spec("ray").origin).parent)  # type: ignore[union-attr]  (ray is installed)
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


def by_name(some: Iterable[psutil.Process], *names: str) -> tuple[tuple[str, psutil.Process], ...]:
    """Return (name, process) of those with one of these names."""
    result = []
    for process in some:
        with suppress(psutil.Error):
            if process.name() in names:
                result.append((process.name(), process))
    return tuple(result)


def of_group(number: int) -> list[psutil.Process]:
    """Return the processes of a process group that run."""
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
    """Return whether the process runs; one that has ended and was not waited for does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stopped(pid: int) -> bool:
    """Return whether this machine has a worker of Ray's with this number, and a signal has stopped it."""
    with suppress(psutil.Error, ValueError):
        process = psutil.Process(pid)
        return process.name().startswith("ray::") and process.status() == psutil.STATUS_STOPPED
    return False


def create_time(pid: int) -> float | None:
    """Return when the process that has this number was started, s since the boot; None where none runs.

    None, too, for another user's where the system hides those (hidepid=1, proc(5)): it is none of ours.
    psutil's time is since 1970: a step of the clock would make another process of it.
    """
    with suppress(psutil.Error, OSError):
        return clock.started_s(pid) if lives(psutil.Process(pid)) else None
    return None


def runs(pid: int, created: float | None) -> bool:
    """Return whether the process that got this number at that time still runs; numbers are used again."""
    return created is not None and create_time(pid) == created


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill these processes; some may have ended."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def end(processes: Collection[psutil.Process]) -> None:
    """Wait STOP_S for processes that were told to end, and kill those that have not."""
    # Where nobody reaps orphans (a container without init) an ended process stays as a zombie.
    waits = 10 * STOP_S
    while waits and any(lives(process) for process in processes):
        time.sleep(0.1)
        waits -= 1
    kill(filter(lives, processes))

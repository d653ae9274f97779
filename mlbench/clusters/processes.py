"""Processes on this machine: those of one Ray, which name its session's folder, and their families."""

import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

SERVERS = ("gcs_server", "raylet")  # Ray's two servers, by the names of their processes
SESSION = re.compile(r"/[^ =]*/session_[^/ ]+")  # the folder that every process of one Ray names


def session_of(process: psutil.Process) -> str | None:
    """Return the folder of the Ray session that a process names; None where it names none."""
    with suppress(psutil.Error):
        found = SESSION.search(" ".join(process.cmdline()))
        return found[0] if found else None
    return None


def of_session(session: str) -> set[psutil.Process]:
    """Return the processes of the Ray whose session has this folder, and all below them.

    A program that looks at the folder, e.g. `tail -f` of a log there, is none of them.
    """
    package = str(Path(find_spec("ray").origin).parent)  # type: ignore[union-attr]  (ray is installed)
    ray: set[psutil.Process] = set()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if package in " ".join(words[:3]) and session in " ".join(words):
            ray |= {process, *children(process)}  # workers take other names
    return ray


def below(pids: Iterable[int]) -> set[psutil.Process]:
    """Return the processes with these numbers, and all below them."""
    family: set[psutil.Process] = set()
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            family |= {process, *children(process)}
    return family


def children(process: psutil.Process) -> list[psutil.Process]:
    """Return the processes below this one; none where it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def lives(process: psutil.Process) -> bool:
    """Return whether the process runs; one that has ended and was not waited for does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

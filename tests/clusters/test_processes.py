"""The processes of one Ray are told from those that only look at its files."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray

from mlbench.clusters import processes, reaper

SLEEP = "import time; time.sleep(600)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"


@pytest.fixture
def start() -> Iterator[Callable[..., psutil.Process]]:
    """Start Python with these words; end it and what is below it after the test."""
    begun: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str) -> psutil.Process:
        begun.append(subprocess.Popen([sys.executable, *arguments]))
        return psutil.Process(begun[-1].pid)

    yield run
    for process in begun:
        for child in processes.below([process.pid]):
            child.kill()
        process.wait()


def with_child(process: psutil.Process) -> set[psutil.Process]:
    """Return a process and its child, once it has one."""
    while not process.children():
        assert process.is_running()
    return {process, *process.children()}


def test_ray_s_processes_name_the_session_and_what_only_looks_at_it_is_none(
    start: Callable[..., psutil.Process], tmp_path: Path
) -> None:
    """A notebook's loader, a thread's subprocess, or `tail -f` of a log is not ours to kill."""
    session = str(tmp_path / "session_2026")
    code = f"{PARENT}  # {Path(ray.__file__).parent}/raylet"
    server = start("-c", code, f"--session_dir={session}")
    other = start("-c", code, f"--session_dir={tmp_path / 'session_1999'}")
    start("-c", SLEEP, f"{session}/logs/raylet.out")
    ours = with_child(server)
    assert processes.of_session(session) == ours
    assert processes.session_of(server) == session != processes.session_of(other)
    assert processes.session_of(psutil.Process()) is None


def test_a_process_is_its_number_and_when_it_was_started(start: Callable[..., psutil.Process]) -> None:
    process = start("-c", SLEEP)
    created = processes.create_time(process.pid)
    assert created is not None and processes.runs(process.pid, created)
    assert not processes.runs(process.pid, created + 1)  # another one that got the number
    process.kill()
    while processes.lives(process):
        pass
    assert process.is_running(), "it has not been waited for"
    assert processes.create_time(process.pid) is None and not processes.runs(process.pid, created)
    assert not processes.runs(process.pid, None)  # it had ended before it was looked at


def test_what_is_below_a_process_belongs_to_it(start: Callable[..., psutil.Process]) -> None:
    parent = start("-c", PARENT)
    family = with_child(parent)
    assert processes.below([parent.pid]) == family
    assert processes.below([2**22 + 1]) == set()


def test_a_step_of_the_clock_makes_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil adds the boot's time, which the kernel moves with the wall clock."""
    name, created = reaper.owner(), processes.create_time(os.getpid())
    boot = psutil._pslinux.boot_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot + 1)
    assert reaper.owner() == name and reaper._lives(name) and processes.runs(os.getpid(), created)


def test_a_process_is_known_whatever_its_name_and_another_user_s_that_is_hidden_is_none_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Path("/proc/self/comm")
    before = own.read_bytes()
    own.write_bytes(b"caf\xe9")
    try:
        assert processes.create_time(os.getpid()) is not None
    finally:
        own.write_bytes(before)

    def hidden(self: psutil.Process) -> str:
        raise psutil.AccessDenied(self.pid)  # as with hidepid=1, proc(5)

    monkeypatch.setattr(psutil.Process, "status", hidden)
    assert processes.create_time(os.getpid()) is None

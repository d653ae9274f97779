"""Two runs on one machine know of each other: real processes, one file."""

import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from commands import PATIENCE_S

from mlbench.clusters import machine_lock
from mlbench.clusters.machine_lock import MachineLock

HOLD = """
import sys
from mlbench.clusters.machine_lock import MachineLock
lock = MachineLock().acquire(wait=sys.argv[1] == "wait", on_wait=lambda: print("waits", flush=True))
print("holds", lock.shared, flush=True)
sys.stdin.readline()
print("ends", lock.shared, flush=True)
"""


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(machine_lock.PATH, str(tmp_path / "lock"))
    return tmp_path / "lock"


def other(wait: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, wait]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_run_waits_until_the_first_is_killed_and_neither_is_marked() -> None:
    first = other("wait")
    assert line(first) == "holds False"
    event = threading.Event()
    second = MachineLock()
    waiting = threading.Thread(target=second.acquire, kwargs={"wait": True, "on_wait": event.set})
    waiting.start()
    assert event.wait(PATIENCE_S)
    assert waiting.is_alive()
    first.kill()  # the kernel frees the lock
    first.communicate()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive() and second.waited_s > 0 and not second.shared
    second.release()


def test_a_run_that_does_not_wait_marks_itself_and_the_one_that_is_there() -> None:
    first = other("wait")
    assert line(first) == "holds False"
    guest = MachineLock().acquire(wait=False)
    assert guest.shared
    guest.release()  # it may be gone before the first one looks
    assert first.communicate("\n", timeout=PATIENCE_S)[0].strip() == "ends True"


def test_two_that_do_not_wait_mark_each_other_and_a_third_that_waits_comes_after_both() -> None:
    first = other("beside")
    assert line(first) == "holds False"
    second = MachineLock().acquire(wait=False)
    assert second.shared
    third = other("wait")
    assert line(third) == "waits"
    assert first.communicate("\n", timeout=PATIENCE_S)[0].strip() == "ends True"
    second.release()
    assert line(third) == "holds False"
    third.communicate("\n")


def test_alone_nothing_is_marked_and_every_user_may_use_the_file(path: Path) -> None:
    lock = MachineLock().acquire(wait=False)
    assert not lock.shared and lock.waited_s == 0
    lock.release()
    assert path.stat().st_mode & 0o777 == 0o666
    again = MachineLock().acquire(wait=True)
    assert not again.shared
    again.release()


def test_without_a_file_to_lock_a_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(machine_lock.PATH, str(tmp_path / "nowhere" / "lock"))
    lock = MachineLock().acquire(wait=True)
    assert not lock.shared
    lock.release()


@pytest.mark.parametrize(
    "moment", [fcntl.LOCK_SH, fcntl.LOCK_EX], ids=["before its shared lock", "after its own"]
)
def test_another_that_comes_while_the_lock_is_taken_is_marked_and_marks(
    moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flock(2): to make a lock a shared one the kernel lets go of it, and who waits may get it."""
    flock, first, second = fcntl.flock, MachineLock(), MachineLock()

    def meanwhile(descriptor: int, operation: int) -> None:
        if descriptor == first._descriptor and operation == moment | fcntl.LOCK_NB:
            monkeypatch.setattr(fcntl, "flock", flock)
            flock(descriptor, fcntl.LOCK_UN if moment == fcntl.LOCK_SH else operation)
            second.acquire(wait=moment == fcntl.LOCK_SH)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    first.acquire(wait=moment == fcntl.LOCK_EX)
    assert first.shared and second.shared

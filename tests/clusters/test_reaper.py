"""What a killed command leaves is found by its lock or its owner's name, and nobody else's is touched."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import until

from mlbench.clusters import processes, reaper
from mlbench.record import temporary_folder

MAKE = """
import os, subprocess, sys
from mlbench.clusters import reaper
from mlbench.record import temporary_folder
folder, lock = temporary_folder.create()
with reaper.marked(folder):
    child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
assert reaper.MARK not in os.environ and os.environ.get("TMPDIR") != str(folder)
print(folder, child.pid, flush=True)
sys.stdin.read()
"""


def test_a_folder_and_processes_go_once_their_maker_was_killed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    users = tmp_path / f"{temporary_folder.PREFIX}of_users"
    users.mkdir()
    (users / "file").touch()
    with temporary_folder.folder() as own:
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
        command = [sys.executable, "-c", MAKE]
        maker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert maker.stdout is not None
        name, pid = maker.stdout.readline().split()
        owner = reaper.owner(maker.pid)
        assert [process.pid for _, process in reaper.processes(owner)] == [int(pid)]
        assert list(temporary_folder.abandoned()) == [] and owner not in reaper.reap()
        maker.kill()
        maker.communicate()
        until(lambda: list(temporary_folder.abandoned()) == [Path(name)])
        reaper.reap_if_any()
        assert not Path(name).exists() and not reaper.processes(owner)
        assert own.exists() and users.exists()
    assert not own.exists()


KEEP = """
import os, subprocess
from mlbench.clusters import reaper
from mlbench.record import temporary_folder
folder, lock = temporary_folder.create()
subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, env={**os.environ, reaper.MARK: str(folder)})
print(folder)
"""


def test_what_is_left_of_a_ray_that_outlived_its_command_goes_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's client server does not name the folder."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    folder = subprocess.run(
        [sys.executable, "-c", KEEP], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    ((_, process),) = reaper.processes(folder.strip())
    reaper.reap_if_any()
    assert not processes.lives(process) and list(tmp_path.iterdir()) == []


def test_a_process_that_one_scan_misses_is_ended_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is just being executed shows no environment, and so no owner."""
    pid, _, namespace = reaper.owner().split("-")
    name = f"{pid}-1-{namespace}"  # an owner that has died: its number was given again
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, reaper.MARK: name})
    until(lambda: len(reaper.processes(name)) == 1)
    scans, scan = [], reaper.processes

    def blind_at_first(owner: str | None = None) -> list[tuple[str, psutil.Process]]:
        scans.append(scan(owner))
        return scans[-1] if len(scans) > 1 else []

    monkeypatch.setattr(reaper, "processes", blind_at_first)
    reaper.end(name)
    assert not psutil.pid_exists(child.pid)
    child.wait()


def test_the_owner_in_another_container_is_never_dead() -> None:
    pid, created, namespace = reaper.owner().split("-")
    assert not reaper._lives(f"{pid}-b1-{namespace}"), "the number of another process by now"
    assert reaper._lives(f"{pid}-b1-{int(namespace) + 1}")
    assert reaper._lives(f"{pid}-1-{namespace}"), "as 0.2 names owners: another version's are its own"
    assert reaper._lives(f"{pid}-{created}-{namespace}") and reaper._lives("somebody")
    assert namespace == str(os.stat("/proc/self/ns/pid").st_ino)


ENDS = """
import atexit, threading, time
from mlbench.record import temporary_folder
again, begun = threading.Event(), threading.Event()
def write():  # to a slow store
    with temporary_folder.folder():
        begun.set()
        again.wait()
    with temporary_folder.folder():
        time.sleep(600)
def late():  # as Ray's end, which takes a while
    again.set()
    time.sleep(1)
atexit.register(late)
threading.Thread(target=write, daemon=True).start()
begun.wait()
"""


REMOVES = """
import shutil, threading, time
from mlbench.record import temporary_folder
removed, rmtree = threading.Event(), shutil.rmtree
def slow(path, **options):  # it has removed what is in the folder, not yet the folder
    if threading.current_thread() is threading.main_thread():
        return rmtree(path, **options)
    (path / temporary_folder.MARKER).unlink()
    removed.set()
    time.sleep(600)
shutil.rmtree = slow
def write():
    with temporary_folder.folder():
        pass
threading.Thread(target=write, daemon=True).start()
removed.wait()
"""


@pytest.mark.parametrize("code", [ENDS, REMOVES], ids=["it writes", "it removes its folder"])
def test_a_thread_that_is_at_work_when_the_process_ends_leaves_no_folder(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(tmp_path.iterdir()) == []


def test_what_an_ended_process_writes_while_its_folder_is_removed_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    rmtree, attempts = shutil.rmtree, iter((True, False))

    def beside_a_writer(path: Path, **options: Any) -> None:
        rmtree(path, **options)
        if next(attempts):
            path.mkdir()
            (path / "log").touch()

    with temporary_folder.folder():
        monkeypatch.setattr(shutil, "rmtree", beside_a_writer)
    assert list(tmp_path.iterdir()) == []

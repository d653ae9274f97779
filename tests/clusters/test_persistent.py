"""What outlives a command is found again, or told apart from what only looks like it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from commands import PATIENCE_S, until

from mlbench.clusters import persistent, processes
from mlbench.config.errors import UserError


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write the note of a Ray whose servers are these processes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(persistent.ADDRESS, raising=False)

    def write(*servers: psutil.Process, created: float = 0.0) -> Path:
        path = persistent._path()
        path.parent.mkdir(exist_ok=True)
        starts = {server.pid: processes.create_time(server.pid) or 0.0 for server in servers}
        entries = [{"pid": pid, "created": start + created} for pid, start in starts.items()]
        path.write_text(json.dumps({"address": "127.0.0.1:1", "servers": entries}))
        return path

    return write


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_a_process_that_does_not_end_by_itself_is_killed() -> None:
    quick = subprocess.Popen([sys.executable, "-c", "pass"])
    stuck = sleeper()
    until(lambda: psutil.Process(quick.pid).status() == psutil.STATUS_ZOMBIE)
    both = psutil.Process().children(recursive=True)
    assert {quick.pid, stuck.pid} <= {process.pid for process in both}
    processes.end([process for process in both if process.pid in (quick.pid, stuck.pid)])
    assert quick.wait(timeout=PATIENCE_S) == 0
    assert stuck.wait(timeout=PATIENCE_S) == -9


def test_the_note_of_another_machine_with_the_same_home_stays(note, monkeypatch: pytest.MonkeyPatch) -> None:
    path = note(psutil.Process(), psutil.Process())
    monkeypatch.setattr(persistent.clock, "host_clock_id", lambda: "another boot")
    assert persistent.address() is None and persistent.stop() is False
    assert path.exists()


def test_the_note_of_another_container_with_the_same_home_stays(
    note, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = note(psutil.Process(), psutil.Process())
    own = os.stat("/proc/self/ns/net")
    monkeypatch.setattr(os, "stat", lambda *_, **__: own)  # of its processes' numbers
    assert persistent._path() != path


def test_an_empty_cache_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert persistent._path().is_relative_to(Path.home() / ".cache")


def test_a_ray_whose_start_is_interrupted_ends(note, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Path] = []
    started: list[str] = []

    def interrupted(words: list[str], **_: object) -> None:
        started.extend(words)
        raise KeyboardInterrupt

    monkeypatch.setattr(persistent.subprocess, "run", interrupted)
    for name in ("require_processes", "require_short_paths"):
        monkeypatch.setattr(persistent.ray_env, name, lambda: None)
    monkeypatch.setattr(persistent.reaper, "of_folder", lambda folder: ended.append(folder) or set())
    monkeypatch.setattr(persistent.reaper, "dead", list)  # not those of other tests
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        persistent.start()
    assert len(set(ended)) == 1 and not ended[0].exists(), "its lock was still held"
    assert f"--temp-dir={ended[0]}/{persistent.ray_env.SUBFOLDER}" in started, "Ray opens it to all users"
    assert not persistent._path().exists()


def test_a_ray_counts_while_both_servers_live_and_one_alone_is_told(note) -> None:
    here, other = psutil.Process(), sleeper()
    server = psutil.Process(other.pid)
    note(here, server)
    assert persistent.address() == "127.0.0.1:1"
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # now it is a zombie
    with pytest.raises(UserError, match="mlbench cluster stop"):
        persistent.address()
    other.wait()
    with pytest.raises(UserError, match="lost a server"):
        persistent.address()


def test_a_number_that_another_process_has_by_now_is_no_server_of_ours(note) -> None:
    path = note(psutil.Process(), created=-3600.0)
    assert persistent.address() is None
    assert not persistent.stop() and psutil.pid_exists(psutil.Process().pid)
    path.write_text("[]")
    assert persistent.address() is None

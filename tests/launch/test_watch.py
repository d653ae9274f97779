"""What the driver does beside the run decides nothing, except that a dead Ray ends the wait for it."""

import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import PATIENCE_S, until

from mlbench.clusters.connection import Connection, Servers, WorkerProcess
from mlbench.launch import watch
from mlbench.launch.heartbeat import HeartbeatClient
from mlbench.launch.watch import Watch
from mlbench.record import events


class Display:
    """Keeps what it is shown, or breaks at the first heartbeat."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.breaks = breaks
        self.shown: list[str] = []

    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...
    def connected(self, threads: int, oversubscribed: bool) -> None: ...

    def heartbeat(self, heartbeat: dict[str, Any]) -> None:
        if self.breaks:
            raise KeyError("loss")
        self.shown.append(f"rank {heartbeat['rank']}")

    def event(self, event: dict[str, Any]) -> None:
        self.shown.append(event["key"])


def connection(*servers: tuple[str, psutil.Process]) -> Connection:
    return Connection(
        {}, "PACK", 1, False, host="127.0.0.1", job_id="1", node_ids=[], servers=Servers(servers)
    )


def test_a_display_that_breaks_leaves_an_event_and_the_run_goes_on(tmp_path: Path) -> None:
    log, display = tmp_path / events.NAME, Display(breaks=True)
    with Watch(log, display) as watching, watching.connected(connection()) as heartbeats:
        HeartbeatClient(heartbeats.address, token=heartbeats.token, rank=0)({"epoch": 1})
        until(lambda: log.exists())
    (event,) = events.read(log)
    assert (event["key"], event["value"]) == ("display_failure", "KeyError: 'loss'")
    assert watching.lost is None and display.shown == []


def test_heartbeats_and_events_are_shown_to_the_last(tmp_path: Path) -> None:
    log, display = tmp_path / events.NAME, Display()
    with Watch(log, display) as watching, watching.connected(connection()) as heartbeats:
        HeartbeatClient(heartbeats.address, token=heartbeats.token, rank=1)({"epoch": 1})
        until(lambda: display.shown)
        events.append(log, "validation", {})
    assert display.shown == ["rank 1", "validation"]


def test_a_dead_server_of_ray_ends_the_wait_in_the_main_thread(tmp_path: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    watching = Watch(tmp_path / "log", Display())
    servers = connection(("gcs_server", psutil.Process(server.pid)))
    with pytest.raises(KeyboardInterrupt), watching, watching.connected(servers):
        server.kill()
        time.sleep(PATIENCE_S)
    server.wait()
    assert watching.lost is not None and "(GCS) has died" in watching.lost


@pytest.mark.slow
def test_a_server_counts_as_lost_while_the_run_needs_it_and_not_once_the_driver_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SERVERS_POLL_S", 0.05)
    for dies_within in (False, True):
        server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        servers = connection(("raylet", psutil.Process(server.pid)))
        with Watch(tmp_path / "log", Display()) as watching:
            monkeypatch.setattr(watch, "SERVERS_POLL_S", 600 if dies_within else 0.05)
            with suppress(KeyError), watching.connected(servers):
                if dies_within:  # and a worker fails of it, before the thread looks
                    time.sleep(1)
                    server.kill()
                    server.wait()
                raise KeyError
            server.kill()
            server.wait()
            time.sleep(1)
        assert (watching.lost is not None) == dies_within


def test_workers_that_do_not_start_have_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "START_S", 0.1)
    monkeypatch.setattr(watch, "SERVERS_POLL_S", 0.05)
    watching = Watch(tmp_path / "log", Display())
    with pytest.raises(KeyboardInterrupt), watching, watching.connected(connection()):
        time.sleep(PATIENCE_S)
    assert watching.lost is not None and "start within 0.1 s" in watching.lost


class Starting(Connection):
    """A connection whose only worker is the process with this number."""

    def workers(self) -> list[WorkerProcess]:
        return [WorkerProcess("n", "10.9.0.3", int(self.job_id))]


def test_a_worker_that_is_frozen_before_the_training_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FROZEN_S", 0.3)
    monkeypatch.setattr(watch, "SERVERS_POLL_S", 0.05)
    (tmp_path / "ray::RayTrainW").symlink_to(str(shutil.which("sleep")))
    worker = subprocess.Popen([tmp_path / "ray::RayTrainW", "600"])
    process = psutil.Process(worker.pid)
    waiting = Starting({}, "PACK", 1, False, host="127.0.0.1", job_id=str(worker.pid), node_ids=[])
    with Watch(tmp_path / "log", Display()) as watching, watching.connected(waiting):
        time.sleep(1)
        assert watching.lost is None, "it runs"
    process.suspend()
    watching = Watch(tmp_path / "log", Display())
    with pytest.raises(KeyboardInterrupt), watching, watching.connected(waiting):
        time.sleep(PATIENCE_S)
    assert watching.lost is not None and f"process {worker.pid} on 10.9.0.3" in watching.lost
    worker.kill()
    worker.wait()


GCS = """
import ctypes, os, signal, subprocess, sys, threading
from mlbench.clusters import reaper
from mlbench.launch import watch
watch.SERVERS_POLL_S = watch.GIVE_UP_S = 0.1
def conclude(why):
    print(why, flush=True)
    os._exit(1)
lives = threading.Event()
watch.Servers.lost = lambda self, lost=watch.Servers.lost: (self.local and lives.set()) or lost(self)
with watch.starting(conclude):
    server = subprocess.Popen([sys.argv[1], "600"], env={**os.environ, **reaper.environment()})
    lives.wait()
    print(server.pid, flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()))
    while True:  # as in Ray: no signal reaches Python
        ctypes.CDLL(None).sleep(60)
"""


def test_a_server_that_dies_while_ray_starts_is_told_though_ray_waits(tmp_path: Path) -> None:
    (tmp_path / "gcs_server").symlink_to(str(shutil.which("sleep")))
    command = [sys.executable, "-c", GCS, str(tmp_path / "gcs_server")]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    server = psutil.Process(int(run.stdout.readline()))
    server.kill()
    out, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1 and "(GCS) has died" in out


def test_a_node_that_is_gone_is_named_unless_no_worker_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    names = ("NodeID", "Alive", "NodeManagerHostname", "NodeManagerAddress")
    nodes = [("n", False, "vm3", "10.9.0.3"), ("m", True, "vm2", "10.9.0.2")]
    monkeypatch.setattr(ray, "nodes", lambda: [dict(zip(names, node, strict=True)) for node in nodes])
    run = Starting({}, "PACK", 1, False, host="127.0.0.1", job_id="1", node_ids=["n", "m"])
    assert "node vm3 (10.9.0.3) is" in str(run.lost())
    assert replace(run, restarts=True).lost() is None
    nodes[0], nodes[1] = ("k", False, "vm3", "10.9.0.3"), ("n", True, "vm2", "10.9.0.2")
    assert run.lost() is None, "another run's node"

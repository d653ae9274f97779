"""Keep a Ray on this machine after a command ends, so that the next command need not start one."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from mlbench import clock
from mlbench.clusters import node, ray_env, reaper
from mlbench.clusters.processes import SERVERS, by_name, create_time, end, of_session, runs, session_of
from mlbench.config import libraries
from mlbench.config.errors import ClusterError
from mlbench.record import temporary_folder

# The reservation of a Tune trial, so that trials run one at a time and leave all CPUs to the workers.
DRIVER_RESOURCE = {"mlbench_driver": 1.0}
ADDRESS = "MLBENCH_RAY_ADDRESS"  # environment variable by which a sweep passes it to its runs


def address() -> str | None:
    """Return the address of the Ray that a sweep keeps for its runs or that `start` left running, or None.

    Raises UserError if only one of its two servers is left.
    """
    if ADDRESS in os.environ:
        return os.environ[ADDRESS]
    note = _note()
    if note is None:
        return None
    alive = [_is_alive(server) for server in note["servers"]]
    if not any(alive):
        return None
    if not all(alive):
        raise ClusterError(
            f"the Ray that `mlbench cluster start` left at {note['address']} lost a server",
            hint="stop it with `mlbench cluster stop`",
        )
    return note["address"]


def servers() -> list[int]:
    """Return the process ids of the servers of the Ray that `start` left running."""
    note = _note()
    return [server["pid"] for server in note["servers"] if _is_alive(server)] if note else []


def start() -> str:
    """Start a Ray that outlives this command and return its address. A running one is kept."""
    libraries.require("ray", user="mlbench cluster start")
    _path().parent.mkdir(parents=True, exist_ok=True)
    with FileLock(_path().with_name("ray.lock")):  # two commands at once start one
        running = address()
        if running:
            return running
        ray_env.require_token(shared=True)
        ray_env.disable_background_work()
        ray_env.stay_on_loopback()
        ray_env.require_short_paths()
        ray_env.require_processes()
        options = ("--head", "--port=0", "--include-dashboard=false")
        options += (f"--num-cpus={node.usable_cpus()}", f"--resources={json.dumps(DRIVER_RESOURCE)}")
        options += (f"--object-store-memory={node.OBJECT_STORE_BYTES}",)
        reaper.reap_if_any()
        folder, lock = temporary_folder.create()  # other programs do not find Ray's address here
        options += (f"--temp-dir={folder}/{ray_env.SUBFOLDER}",)
        try:
            return _launch(folder, options, lock)
        except BaseException:  # also Ctrl-C, which does not reach its servers
            _end(reaper.of_folder(folder))
            raise


def _launch(folder: Path, options: Collection[str], lock: int | None) -> str:
    """Start Ray with these options and write a note of it. Return its address."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *options],
            env={**os.environ, reaper.MARK: str(folder), "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
        )
    finally:
        if lock is not None:
            os.close(lock)  # the servers represent the folder from now on
    # `ray start` prints its address for people, and not at all on loopback, so its servers are looked up.
    servers = dict(by_name(reaper.of_folder(folder), *SERVERS))
    if done.returncode or len(servers) < len(SERVERS):
        raise ClusterError(
            f"Ray did not start: {(done.stderr or done.stdout).strip()[-300:]}",
            hint="`ray start --head` prints the reason",
        )
    note = {
        "address": f"127.0.0.1:{_port(servers[SERVERS[0]])}",
        "servers": [{"pid": server.pid, "created": create_time(server.pid)} for server in servers.values()],
    }
    part = _path().with_suffix(".part")
    part.write_text(json.dumps(note))
    part.replace(_path())
    return note["address"]


def stop() -> bool:
    """Stop the Ray that `start` left running. Return whether there was one."""
    alive = list(map(psutil.Process, servers()))
    sessions = filter(None, map(session_of, alive))
    _end(set(alive).union(*map(of_session, sessions)))
    _path().unlink(missing_ok=True)
    return bool(alive)


def _end(ours: Collection[psutil.Process]) -> None:
    """End the processes of a Ray, and remove its folder."""
    for process in ours:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    end(ours)
    reaper.reap_if_any()


def _note() -> dict[str, Any] | None:
    """Return the note of `start`: an address and, by pid and time of creation, its servers."""
    try:
        note = json.loads(_path().read_text())
        return note if {"address", "servers"} <= note.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _is_alive(server: dict[str, Any]) -> bool:
    """Return whether this very process is alive. Another process may have its number by now."""
    try:
        return runs(server["pid"], server["created"])
    except (KeyError, TypeError, ValueError, psutil.Error):
        return False


def _port(server: psutil.Process) -> int:
    """Return the port at which drivers join: the only one of the cluster state's server (GCS)."""
    for socket in server.net_connections("tcp"):
        if socket.status == psutil.CONN_LISTEN:
            return socket.laddr.port
    raise ClusterError("the Ray that was started has ended", hint="`ray start --head` shows why")


def _path() -> Path:
    """Return the path of the note of this boot and container: others may have the same home."""
    place = f"{clock.host_clock_id()} {reaper.pid_namespace()}"
    name = f"ray-{hashlib.sha256(place.encode()).hexdigest()[:8]}.json"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlbench" / name

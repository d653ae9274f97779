"""A Ray on this machine that outlives a command, so that the next one need not start its own."""

import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from mlbench.experiment import provenance
from mlbench.experiment.errors import UserError

# What a Tune trial reserves, so that trials run one at a time and leave all CPUs to the workers.
DRIVER_RESOURCE = {"mlbench_driver": 1.0}
ADDRESS = "MLBENCH_RAY_ADDRESS"  # environment variable by which a sweep tells its runs
STOP_S = 2  # s that Ray's processes have to end; the two servers do not end by themselves within 10 s (2.60)


def address() -> str | None:
    """Return the address of the Ray that a sweep keeps for its runs or `start` left running, or None."""
    if ADDRESS in os.environ:
        return os.environ[ADDRESS]
    kept = _note()
    return kept["address"] if kept else None


def start() -> str:
    """Start a Ray that outlives this command and return its address; one that runs is kept."""
    kept = _note()
    if kept:
        return kept["address"]
    secure()
    quiet()
    words = ("start", "--head", "--port=0", "--include-dashboard=false")
    words += (f"--num-cpus={provenance.usable_cpus()}", f"--resources={json.dumps(DRIVER_RESOURCE)}")
    main = "from ray.scripts.scripts import main; main()"
    done = subprocess.run([sys.executable, "-c", main, *words], capture_output=True, text=True)
    found = re.search(r"--address='([\d.]+:\d+)'", done.stdout)
    if done.returncode or not found:
        raise UserError(
            f"Ray did not start: {(done.stderr or done.stdout).strip()[-300:]}",
            hint="`ray start --head` shows the whole story",
        )
    server = _server(port=int(found[1].rpartition(":")[2]))
    note = {"address": found[1], "pid": server.pid, "created": server.create_time()}
    _path().parent.mkdir(parents=True, exist_ok=True)
    _path().write_text(json.dumps(note))
    return found[1]


def quiet() -> None:
    """Keep Ray's own processes, which share this machine with the workers, from taking time that is measured.

    Ray would also give its workers the priority of a background job (nice 15), so that whatever else the
    machine does would count as theirs.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_enable_metrics_collection", "0")  # for Prometheus, which nobody runs here
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")  # for the dashboard, which is off
    os.environ.setdefault("LOG_NAME_UPDATE_INTERVAL_S", "10")  # s between two searches for new log files


def secure() -> None:
    """Make Ray's servers, which listen on all interfaces, refuse whoever lacks this user's token.

    Ray's own default would create a token that every user of the machine can read.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    token = Path.home() / ".ray" / "auth_token"
    if os.environ["RAY_AUTH_MODE"] == "token" and not token.exists():
        token.parent.mkdir(parents=True, exist_ok=True)
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))


def stop() -> bool:
    """Stop the Ray that `start` left running; return whether there was one."""
    kept = _note()
    if kept is None:
        return False
    logs = next(a for a in psutil.Process(kept["pid"]).cmdline() if a.startswith("--log_dir="))
    session = str(Path(logs.split("=", 1)[1]).parent)
    named = [p for p in psutil.process_iter(["cmdline"]) if session in " ".join(p.info["cmdline"] or ())]
    ours = {*named, *(child for process in named for child in children(process))}  # agents take other names
    for process in ours:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    end(ours)
    _path().unlink(missing_ok=True)
    return True


def end(processes: Collection[psutil.Process]) -> None:
    """Wait STOP_S for processes that were told to end, and kill those that have not."""
    # Where nobody reaps orphans (a container without init) an ended process stays as a zombie.
    waits = 10 * STOP_S
    while waits and any(_lives(process) for process in processes):
        time.sleep(0.1)
        waits -= 1
    for process in filter(_lives, processes):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _note() -> dict[str, Any] | None:
    """Return what `start` noted if that Ray is still alive."""
    try:
        kept = json.loads(_path().read_text())
        process = psutil.Process(kept["pid"])
        same = process.create_time() == kept["created"] and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, KeyError, psutil.Error):
        return None
    return kept if same else None


def children(process: psutil.Process) -> list[psutil.Process]:
    """Return the processes below this one; none where it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _server(*, port: int) -> psutil.Process:
    """Return the process that serves our Ray; the port tells it from one that somebody else just started."""
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "gcs_server":
            with suppress(psutil.Error):
                listening = (c.laddr for c in process.net_connections("tcp") if c.status == "LISTEN")
                if any(port == address.port for address in listening):
                    return process
    raise UserError(f"the Ray that was started at port {port} has ended", hint="`ray start --head`")


def _path() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mlbench" / "ray.json"

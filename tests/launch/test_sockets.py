"""docs/security.md: a local run listens on loopback alone, and Ray asks for the user's token."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from commands import CACHE, Run

from mlbench.clusters import ray_env

pytestmark = [pytest.mark.ray, pytest.mark.slow]
# MPI opens sockets of its own beside those of the group of control, which is gloo's.
LONG = ("goal=none", "division=open", "task.epochs=400", "task.width=4", "workers=2", "backend=mpi")
STRANGER = """
import sys
from ray._raylet import GcsClient
print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None))
"""


def listening(environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (process, address) of each TCP port and UDP socket of the processes of this Ray and its run."""
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            if process.environ().get(CACHE) != environment[CACHE]:
                continue
            for entry in process.net_connections("inet"):
                datagrams = entry.type == socket.SOCK_DGRAM and entry.laddr and not entry.raddr
                if entry.status == psutil.CONN_LISTEN or datagrams:
                    yield process.info["name"], entry.laddr.ip.removeprefix("::ffff:")


def test_a_local_run_listens_on_loopback_alone(
    kept_ray: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    run = Run(kept_ray, tmp_path, data_root, *LONG)
    try:
        run.await_validation(1)
        found = set(listening(kept_ray))
    finally:
        run.process.terminate()
        code, output = run.finish()
    assert code == 130 and run.record().status == "interrupted", output
    assert {address for _, address in found} <= {"127.0.0.1", "::1"}, sorted(found)
    names = " ".join(name for name, _ in found)
    assert all(name in names for name in ("gcs_server", "raylet", "python", "ray::RayTrainW")), names


def test_ray_answers_nobody_without_the_token(kept_ray: dict[str, str], tmp_path: Path) -> None:
    status = [sys.executable, "-m", "mlbench.cluster", "status"]
    output = subprocess.run(status, env=kept_ray, capture_output=True, text=True, check=True).stdout
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ray_env.TOKEN).read_text()
    ask = [sys.executable, "-c", STRANGER, output.split()[-1]]
    answers = [
        subprocess.run(ask, env={**kept_ray, "RAY_AUTH_TOKEN": one}, capture_output=True, text=True)
        for one in (token, "0" * len(token))
    ]
    assert answers[0].returncode == 0, answers[0].stderr
    assert answers[1].returncode != 0 and answers[1].stdout == ""

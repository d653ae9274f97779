"""A real `mlflow server` on this machine."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands import PATIENCE_S


def wait_for(condition: Callable[[], Any]) -> Any:
    """Return the first true value; a deadline keeps a broken test from waiting for ever."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("this never became true")


class Server:
    """A server that can be killed and started again.

    - folder: where its log, and its files and database unless another `store` is given, lie.
    """

    def __init__(self, folder: Path, *, store: str | None = None) -> None:
        self.folder, self.store = folder, store or f"sqlite:///{folder / 'server.db'}"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
        command += ["--port", str(self.port), "--backend-store-uri", self.store]
        command += ["--artifacts-destination", str(self.folder / "files")]
        env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # eight processes less
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=env, start_new_session=True
            )
        wait_for(self.answers)

    def answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)  # the server and its children, nobody else
            self.process.wait()
            self.process = None

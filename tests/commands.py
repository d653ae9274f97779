"""Real commands in real processes, for tests that kill them."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from conftest import ROOT

from mlbench.record import events
from mlbench.record.reader import load
from mlbench.record.record import Record

CACHE = "XDG_CACHE_HOME"  # environment variable that tells the tests' Ray from any other
PATIENCE_S = 900  # s; a slow machine is no failure, a hang is


class Runs:
    """The folder of a command's runs."""

    def __init__(self, output: Path) -> None:
        self.output = output

    @property
    def folder(self) -> Path:
        """Return the folder of the newest run."""
        return max(path.parent for path in self.output.glob("*/events.jsonl"))

    def record(self) -> Record:
        """Return the record of the newest run."""
        return load(self.folder / "record.json")


class Run(Runs):
    """`python -m mlbench.run` in the background, with a folder of its own."""

    def __init__(self, environment: dict[str, str], output: Path, data_root: Path, *overrides: str) -> None:
        super().__init__(output)
        self.environment = environment
        command = [sys.executable, "-m", "mlbench.run", f"output_root={output}", f"data_root={data_root}"]
        self.process = subprocess.Popen(
            [*command, *overrides],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def log(self) -> list[dict[str, Any]]:
        """Return the events so far."""
        try:
            return events.read(self.folder / events.NAME)
        except ValueError:
            return []

    def validations(self) -> int:
        """Return how many validations the log has."""
        return sum(event["key"] == "validation" for event in self.log())

    def await_validation(self, count: int = 1) -> None:
        """Wait until the workers have validated `count` times."""
        until(lambda: self.validations() >= count or self.process.poll() is not None)
        assert self.validations() >= count, self.finish()[1]

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return exit code and output."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output

    def workers(self) -> list[psutil.Process]:
        """Return the training processes on this run's Ray, oldest first."""
        return training_processes(self.environment)


def until(condition: Any) -> None:
    """Wait for a condition that other processes bring about."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def training_processes(environment: dict[str, str]) -> list[psutil.Process]:
    """Return the workers' processes on the Ray that was started in this environment, oldest first."""
    processes = []
    for process in psutil.process_iter(["name"]):
        if (process.info["name"] or "").startswith("ray::RayTrainW"):
            with suppress(psutil.Error):  # it has just ended
                if process.environ().get(CACHE) == environment[CACHE]:
                    processes.append(process)
    return sorted(processes, key=psutil.Process.create_time)


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

"""Sends what the probe stamps to the collector: its connection, and the clocks of two hosts."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any

from mlbench.probe import clock, stamps

ADDRESS, TOKEN = "MLBENCH_COLLECTOR", "MLBENCH_COLLECTOR_TOKEN"  # variables: host:port, and what it asks for
OTHERS = "MLBENCH_OTHERS"  # variable: of each of the command's streams, which, and where other ranks print
OUTER = "MLBENCH_OUTER"  # variable: RANK, WORLD_SIZE and TORCHELASTIC_RUN_ID before the command
FLUSH_S = 0.5  # s between two messages
ROUNDS = 5  # exchanges by which clocks of two hosts are compared, before each message
ANNOUNCE_S = 1.0  # s that a process waits at its begin for the collector
TIMEOUT_S = 10.0  # s that the collector has to answer


def identity(number: int) -> str:
    """Return which file an open one is, in all processes."""
    status = os.fstat(number)
    return f"{status.st_dev}:{status.st_ino}"


def _cpu_wait_s(thread: int) -> float | None:
    """Return for how long a thread of this process could run and had no CPU; None without Linux."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/self/task/{thread}/schedstat") as file:
        return int(file.read().split()[1]) / 1e9
    return None


def announce() -> None:
    """Tell the collector that a Python process of the command can be watched."""
    host, _, port = os.environ[ADDRESS].rpartition(":")
    with (
        suppress(OSError, ValueError),
        socket.create_connection((host, int(port)), timeout=ANNOUNCE_S) as connection,
    ):
        connection.sendall(json.dumps({"token": os.environ.get(TOKEN, "")}).encode() + b"\n")


class Sender:
    """A thread that sends what a Probe has stamped, so that the script never waits for the network."""

    def __init__(self) -> None:
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._socket: socket.socket | None = None
        self._answers: Any = None
        self._remote = self._met = False  # whether the collector is on another host, and has ever answered

    def start(self, probe: Any) -> None:
        """Begin to send."""
        threading.Thread(target=self._run, args=(probe,), name="mlbench probe", daemon=True).start()

    def finish(self, probe: Any) -> None:
        """Send the rest; the process ends."""
        if (self._socket is not None or probe.trained()) and not self._ended.is_set():
            self._ended.set()
            self._flush(probe, wait=True)
        self._close()

    def _close(self) -> None:
        if self._socket is not None:
            self._answers.close()
            self._socket.close()
            self._socket = None

    def _run(self, probe: Any) -> None:
        while not self._ended.wait(FLUSH_S if self._met else 0.0):
            if not self._flush(probe, wait=False):
                return

    def _flush(self, probe: Any, *, wait: bool) -> bool:
        """Send what there is; return False once nobody takes it any more."""
        recording = probe.recording
        with self._sending:
            if self._ended.is_set() and not wait:  # `finish` was first, and would be followed by a connection
                return False
            try:
                if self._socket is None:
                    self._connect(probe)
                elif select.select([self._socket], [], [], 0)[0]:
                    self._answer()  # it says that the command has ended; what outlives that goes on
                    self._ended.set()
                    raise TimeoutError("the command has ended")
                offset, error = self._offset()
                error += recording.device.clock.error_s if recording.device else 0.0
                complete: list[stamps.Stamp] = []
                try:
                    complete = probe.take(wait=wait)
                except Exception as failure:  # e.g. of CUDA: the record says it
                    recording.fail(failure)
                values = [probe.values.pop(0) for _ in probe.values[:]]
                log = [recording.log.pop(0) for _ in recording.log[:]]
                state = {"values": values, "notes": sorted(recording.notes), "goal": probe.goal, "log": log}
                state |= {
                    "peak_bytes": probe.peak_bytes(),
                    "last": self._ended.is_set(),
                    "cpu_wait_s": _cpu_wait_s(recording.native_thread),
                    "flop": probe.flop_counter.result,
                }
                columns = stamps.encode(complete)
                self._send(stamps=columns, now=recording.until, offset=offset, error=error, **state)
                return True
            except Exception as failure:
                self._close()
                if self._met and isinstance(failure, ConnectionError) and not self._ended.is_set():
                    if not isinstance(failure, ConnectionRefusedError):
                        return True  # the command may still be there
                    if OTHERS in os.environ:
                        os.kill(os.getpid(), signal.SIGTERM)  # it was killed: leave nothing behind
                self._ended.set()
                recording.fail(failure)
                return False

    def _connect(self, probe: Any) -> None:
        host, _, port = os.environ[ADDRESS].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._answers = self._socket.makefile("rb")
        self._send(token=os.environ.get(TOKEN, ""), **probe.describe())
        answer = self._answer()
        self._remote = answer["clock"] != clock.host_clock_id()
        self._met = True
        if answer["describe"]:
            with suppress(Exception):  # the script's environment may have no mlbench, or lack what that needs
                node: Any = import_module("mlbench.clusters.node")
                self._send(node=node.describe().model_dump(mode="json"))

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise ConnectionResetError("the collector has closed the connection")
        return json.loads(line)

    def _send(self, **message: Any) -> None:
        assert self._socket is not None
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _offset(self) -> tuple[float, float]:
        """Return the seconds from this host's clock to the collector's, and how wrong they may be at most."""
        if not self._remote:
            return 0.0, 0.0
        rounds = []
        for _ in range(ROUNDS):
            begin = clock.monotonic()
            self._send(ping=True)
            there = self._answer()["at"]
            end = clock.monotonic()
            rounds.append(((end - begin) / 2, there - (begin + end) / 2))
        error, offset = min(rounds)
        return offset, error

"""Sends what the probe stamps to the collector: its connection, the clocks of two hosts, a GPU's moments."""

import json
import os
import signal
import socket
import threading
from contextlib import suppress
from typing import Any

from mlbench import clock
from mlbench.script import steps

ADDRESS, TOKEN = "MLBENCH_COLLECTOR", "MLBENCH_COLLECTOR_TOKEN"  # variables: host:port, and what it asks for
OTHERS = "MLBENCH_OTHERS"  # variable: the command's output, and where other ranks than 0 print instead
FLUSH_S = 0.5  # s between two messages
ROUNDS = 5  # exchanges by which clocks of two hosts are compared, before each message
TIMEOUT_S = 10.0  # s that the collector has to answer


class DeviceMoments:
    """Turns CUDA events into seconds on the host's clock, each by the end of the step before it.

    torch gives the time between two events as a float32 of milliseconds, which is coarse over minutes.
    """

    def __init__(self) -> None:
        self._base: Any = None
        self._base_s = 0.0

    def seconds(self, torch: Any, gpu: Any, begin: Any, stamps: Any, rows: Any) -> tuple[float, Any, Any]:
        """Return a step's begin, stamps and rows with moments in s; gpu: the device of its events."""
        if self._base is None:
            torch.cuda.synchronize(gpu)
            now = torch.cuda.Event(enable_timing=True)
            now.record(torch.cuda.current_stream(gpu))
            now.synchronize()
            self._base = next(at for _, at in stamps if hasattr(at, "elapsed_time"))
            self._base_s = clock.monotonic() - self._base.elapsed_time(now) / 1e3
        moments = [
            (kind, (self._at(at[0]), self._at(at[1])) if kind == "reduced" else self._at(at))
            for kind, at in stamps
        ]
        first = self._at(begin)
        self._base, self._base_s = stamps[-1][1], moments[-1][1]
        return first, moments, rows

    def _at(self, event: Any) -> float:
        if isinstance(event, float):  # of the host, before the script's first model was seen
            return event
        return self._base_s + self._base.elapsed_time(event) / 1e3


class Sender:
    """A thread that sends what a Probe has stamped, so that the script never waits for the network."""

    def __init__(self) -> None:
        self.device = DeviceMoments()
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
        if (self._socket is not None or probe.count) and not self._ended.is_set():
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
        with self._sending:
            try:
                if self._socket is None:
                    self._connect(probe)
                offset, error = self._offset()
                complete: list[steps.Step] = []
                try:
                    complete = probe.take(wait=wait)
                except Exception as failure:  # e.g. of CUDA: the record says it
                    probe.fail(failure)
                values = [probe.values.pop(0) for _ in probe.values[:]]
                peak = probe.peak_bytes()
                state = {"values": values, "notes": probe.notes(), "goal": probe.goal, "peak_bytes": peak}
                state["last"] = self._ended.is_set()
                self._send(steps=complete, now=probe.until, offset=offset, error=error, **state)
                return True
            except Exception as failure:
                self._close()
                if self._met and isinstance(failure, ConnectionError) and not self._ended.is_set():
                    if not isinstance(failure, ConnectionRefusedError):
                        return True  # the command may still be there
                    if OTHERS in os.environ:
                        os.kill(os.getpid(), signal.SIGTERM)  # it was killed: leave nothing behind
                self._ended.set()
                probe.fail(failure)
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
            with suppress(Exception):  # the script's environment may lack what that needs
                from mlbench.clusters import node  # it imports pydantic, which most processes need not

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

"""Show the run while the driver waits for Ray, and notice what Ray does not report in time.

Nothing that fails here ends a run. A display that breaks leaves an event in the log, and is not called again.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlbench import clock
from mlbench.clusters import processes
from mlbench.clusters.connection import Connection, Servers, WorkerProcess
from mlbench.launch.heartbeat import HeartbeatServer
from mlbench.record import events

POLL_S = 0.5  # s between two looks at the event log. Heartbeats wake it
SERVERS_POLL_S = 2.0  # s between two looks at Ray's servers
GIVE_UP_S = 40.0  # s that the start has to fail by itself once its server has died. Ray takes 60 s (2.60)
START_S = 900.0  # s from the connection to the process group. A worker may be frozen while Ray waits for ever
FROZEN_S = 30.0  # s for which a worker's process is stopped before the run is given up, likewise


@contextmanager
def starting(conclude: Callable[[str], Any]) -> Iterator[None]:
    """Call `conclude` with a sentence if Ray's server dies while the block starts Ray.

    It is called in a thread and should end the process. The main thread waits in Ray, which after a minute
    ends the process without an exception.
    """
    over = threading.Event()
    guard = threading.Thread(target=_guard, args=(over, conclude), name="start", daemon=True)
    guard.start()
    try:
        yield
    finally:
        over.set()


def _guard(over: threading.Event, conclude: Callable[[str], Any]) -> None:
    servers = Servers()
    while not over.wait(SERVERS_POLL_S):
        servers = servers if servers.local else Servers.started_here()
        lost = servers.lost()
        if lost is not None and not over.wait(GIVE_UP_S):
            conclude(lost)
            return


class Watch:
    """A thread that follows one run, as a context manager.

    - lost: why the run cannot go on, in one sentence. The main thread then gets a KeyboardInterrupt.
    """

    def __init__(self, log: Path, progress: Any) -> None:
        self.lost: str | None = None
        self._log = log
        self._follower = events.LogFollower(log)
        self._progress: Any = progress
        self._heartbeats: HeartbeatServer | None = None
        self._connection: Connection | None = None
        self._deadline: float | None = None
        self._stopped: dict[int, float] = {}  # since when workers' processes are stopped, by their numbers
        self._waits_in_main_thread = False
        self._looking = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> "Watch":
        self.show("__enter__")
        return self

    def __exit__(self, *_: Any) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._heartbeats is not None:
            self._heartbeats.close()
        self.show("__exit__", None, None, None)

    @contextmanager
    def connected(self, connection: Connection) -> Iterator[HeartbeatServer]:
        """Follow the workers. Yield the address to which they send their heartbeats.

        Ray's servers are watched during the block, and checked once more if it fails. Afterwards the driver
        itself stops them.
        """
        self.show("connected", connection.threads, connection.oversubscribed)
        self._heartbeats = HeartbeatServer(connection.host)
        self._connection = connection
        self._deadline = clock.monotonic() + START_S
        self._waits_in_main_thread = threading.current_thread() is threading.main_thread()
        self._thread.start()
        try:
            yield self._heartbeats
        finally:
            with self._looking:
                self._waits_in_main_thread = False
                self._look_at_servers()
                self._connection = None

    def show(self, what: str, *values: Any) -> None:
        """Call the display. Once it has failed, the log records that and it is not called again."""
        if self._progress is None:
            return
        try:
            getattr(self._progress, what)(*values)
        except Exception as error:
            self._progress = None
            with suppress(Exception):  # e.g. a full disk, which what is measured finds out itself
                events.append(self._log, "display_failure", f"{type(error).__name__}: {error}")

    def _run(self) -> None:
        next_look = clock.monotonic()
        while not self._ending.is_set():
            for heartbeat in self._poll():
                self.show("heartbeat", heartbeat)
            self._show_events()
            if clock.monotonic() >= next_look:
                with self._looking:
                    self._look_at_servers()
                next_look = clock.monotonic() + SERVERS_POLL_S
        self._show_events()

    def _poll(self) -> list[dict[str, Any]]:
        assert self._heartbeats is not None
        try:
            return self._heartbeats.poll(wait=POLL_S)
        except (OSError, ValueError):  # e.g. too many open files
            self._ending.wait(POLL_S)
            return []

    def _show_events(self) -> None:
        try:
            new = self._follower.take()
        except (OSError, ValueError):
            return
        for event in new:
            if event["key"] == "startup":
                self._deadline = None
            self.show("event", event)

    def _late(self, connection: Connection) -> str | None:
        """Return which worker keeps the others from starting, once that is known."""
        workers: list[WorkerProcess] = []
        with suppress(Exception):  # whatever Ray raises: the call is repeated
            workers = connection.workers()
        stopped = [worker for worker in workers if processes.stopped(worker.pid)]
        now = clock.monotonic()
        self._stopped = {worker.pid: self._stopped.get(worker.pid, now) for worker in stopped}
        for worker in stopped:
            if now - self._stopped[worker.pid] >= FROZEN_S:
                who = f"process {worker.pid} on {worker.address}"
                return f"a worker is frozen before the training, {who}: it was stopped by a signal"
        if self._deadline is not None and now > self._deadline:
            who = (
                ", ".join(f"process {worker.pid} on {worker.address}" for worker in workers)
                or "it does not exist"
            )
            return f"the workers did not start within {START_S:g} s: one may be frozen ({who})"
        return None

    def _look_at_servers(self) -> None:
        if self._connection is None or self.lost is not None:
            return
        with suppress(Exception):  # of Ray's C++ part, which has no type for each: the call is repeated
            self.lost = self._connection.lost()
        if self.lost is None and self._deadline is not None:
            self.lost = self._late(self._connection)
        if self.lost is not None and self._waits_in_main_thread:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

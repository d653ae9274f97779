"""What a run in a pod shows: its event log and heartbeats as lines, for the machine that submitted it."""

import sys
from pathlib import Path
from typing import Any

from mlbench import clock
from mlbench.launch.output import Display
from mlbench.record import events, stream

HEARTBEAT_S = 5.0  # s between two lines; the log of a pod is cut at 10 MiB (kubelet, containerLogMaxSize)


class EventStream(Display):
    """Prints a run's event log as it grows; takes the place of the display."""

    def __init__(self, log: Path) -> None:
        self._follower = events.LogFollower(log)
        self._count = 0
        self._next_heartbeat = 0.0

    def __enter__(self) -> "EventStream":
        self._print_events()
        return self

    def __exit__(self, *_: Any) -> None:
        self._print_events()

    def say(self, text: str) -> None:
        self._print({"activity": text})

    def connected(self, threads: int, oversubscribed: bool) -> None:
        self._print({"connected": {"threads": threads, "oversubscribed": oversubscribed}})

    def heartbeat(self, heartbeat: dict[str, Any]) -> None:
        if "doing" not in heartbeat:
            if clock.monotonic() < self._next_heartbeat:
                return
            self._next_heartbeat = clock.monotonic() + HEARTBEAT_S
        self._print({"heartbeat": heartbeat})

    def event(self, event: dict[str, Any]) -> None:
        self._print_events()

    def end(self) -> None:
        """Print what the log gained at last, and how many events it has in all."""
        self._print_events()
        self._print({"end": self._count})

    def _print_events(self) -> None:
        for event in self._follower.take():
            self._print({"event": event, "number": self._count})
            self._count += 1

    def _print(self, message: dict[str, Any]) -> None:
        sys.stdout.write("\n" + stream.encode(message))  # what others print may lack its end of line
        sys.stdout.flush()

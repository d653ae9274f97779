"""What a run in a pod shows: its event log and heartbeats as lines, for the machine that submitted it."""

import sys
from pathlib import Path
from typing import Any

from mlbench import clock
from mlbench.launch.output import Display
from mlbench.record import events, stream

# The log of a pod is cut at 10 MiB (kubelet, containerLogMaxSize).
HEARTBEAT_S = 5.0  # s between two lines, at first
SELDOM = 1 / 720  # share of a run's time, to which that grows: from an hour on
FILES = ("rank_*.log", "outputs/**/*")  # in a run's folder
FILES_CHARS = 2_500_000  # characters of the files that go home at the end


class EventStream(Display):
    """Prints a run's event log as it grows, in place of the display."""

    def __init__(self, log: Path) -> None:
        self._log, self._follower = log, events.LogFollower(log)
        self._count = 0
        self._began, self._next_heartbeat = clock.monotonic(), 0.0

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
            now = clock.monotonic()
            if now < self._next_heartbeat:
                return
            self._next_heartbeat = now + max(HEARTBEAT_S, SELDOM * (now - self._began))
        self._print({"heartbeat": heartbeat})

    def event(self, event: dict[str, Any]) -> None:
        self._print_events()

    def end(self) -> None:
        """Print what the log gained at last, the run's small files, and how many events there are in all."""
        self._print_events()
        self._print_files()
        self._print({"end": self._count})

    def _print_events(self) -> None:
        for event in self._follower.take():
            self._print({"event": event, "number": self._count})
            self._count += 1

    def _print_files(self) -> None:
        """Print logs of ranks and outputs, the smallest first, as far as there is room for them."""
        folder, room = self._log.parent, FILES_CHARS
        named = {path for pattern in FILES for path in folder.glob(pattern) if path.is_file()}
        for path in sorted(named, key=lambda path: (path.stat().st_size, path)):
            content = stream.pack(path.read_bytes())
            room -= len(content)
            if room < 0:
                break
            self._print({"file": path.relative_to(folder).as_posix(), "content": content})

    def _print(self, message: dict[str, Any]) -> None:
        sys.stdout.write("\n" + stream.encode(message))  # what others print may lack its end of line
        sys.stdout.flush()

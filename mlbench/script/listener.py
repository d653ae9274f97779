"""Takes the steps of all ranks in over TCP, on one clock.

It listens on one address and closes any connection that does not know the run's token. Messages are JSON, one
a line; nothing is unpickled.
"""

import json
import math
import platform
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mlbench import clock
from mlbench.config.errors import UserError
from mlbench.probe import stamps
from mlbench.record.record import Node
from mlbench.script.steps import Splitter, Step

MAX_BYTES = 2**26  # bytes of a message; one of 10,000 steps has 2 MB
MOST_LOGGED = 100  # traces of a message
LEAVE_S = 1.5  # s in which a process that outlives the command closes its connection
SETTLED_S = 1.0  # s after a printed metric, in which the step that it was printed in may end


@dataclass
class Rank:
    """One rank's steps that are in no interval yet, on the collector's clock.

    - until: up to when all its steps are here. about: what it told of itself.
    """

    about: dict[str, Any]
    steps: list[Step] = field(default_factory=list)
    splitter: Splitter = field(default_factory=Splitter)
    until: float = -math.inf
    error_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    peak_bytes: int | None = None  # of its GPU's memory
    flop: dict[str, Any] | None = None  # of its observed step
    interrupted: bool = False  # whether a validation was in that
    cpu_wait_s: float | None = None  # since the process began
    waited_s: float | None = None  # likewise, until its present interval
    last: bool = False  # whether it has told that no more steps follow
    ended: bool = False  # whether its connection has
    since: float = 0.0  # where its present interval began

    def passed(self, at: float) -> bool:
        """Return whether all is here that it did up to a moment, with a short step around that."""
        after = SETTLED_S if not self.steps or self.steps[-1].end < at else 0.0
        return self.ended or self.until >= at + after


class Listener:
    """The listening end, in the process that ends the run.

    - address: host:port. token: what a rank must send first.
    - changed: held while what the ranks have told is read or written.
    """

    def __init__(self, host: str) -> None:
        self.token = secrets.token_hex(16)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._server = socket.create_server((host, 0), family=family, backlog=1024)
        except OSError as error:
            hint = "listen= takes an address of this host, such as ::1 if it has only IPv6"
            raise UserError(f"cannot listen on {host}: {error.strerror or error}", hint=hint) from error
        self.address = f"{host}:{self._server.getsockname()[1]}"
        self.ranks: dict[int, Rank] = {}
        self.hosts: dict[str, Node | None] = {platform.node(): None}  # and what others have told
        self.describe_hosts = True  # False: the record has their description already
        self.world = 0
        self.announced = 0  # Python processes of the command that could be watched
        self.refused = 0  # processes beyond one a rank
        self.log: list[str] = []  # traces of what the probes have kept from the script
        self.changed = threading.Condition()
        self._stepped_at = clock.monotonic()
        self._connections: set[socket.socket] = set()  # of ranks
        threading.Thread(target=self._accept, name="collector", daemon=True).start()

    @property
    def complete(self) -> bool:
        """Whether every rank has come."""
        return 0 < self.world <= len(self.ranks)

    @property
    def peak_bytes(self) -> int | None:
        """Return the most memory that a rank's GPU gave out; None on CPUs."""
        return max(filter(None, (rank.peak_bytes for rank in self.ranks.values())), default=None)

    def active(self, limit_s: float) -> bool:
        """Return whether a rank has told of its training in the last `limit_s` seconds."""
        return clock.monotonic() - self._stepped_at < limit_s

    def close(self) -> None:
        """Stop listening; processes that outlive the command hear of its end, and send nothing more."""
        self._server.close()
        with self.changed:
            for connection in self._connections:
                with suppress(OSError):
                    answer(connection, ended=True)
            self.changed.wait_for(lambda: not self._connections, LEAVE_S if self._connections else 0)

    def drain(self, timeout_s: float) -> None:
        """Wait until every rank that came has ended its connection."""
        with self.changed:
            self.changed.wait_for(lambda: all(rank.ended for rank in self.ranks.values()), timeout_s)

    def told(self, about: dict[str, Any], message: dict[str, Any]) -> None:
        """Take in what else a rank has told; `changed` is held."""

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), name="rank", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        rank = None
        broken = suppress(OSError, ValueError, TypeError, KeyError)
        with connection, connection.makefile("rb") as lines, broken:
            about = json.loads(lines.readline(MAX_BYTES))
            if not secrets.compare_digest(str(about.pop("token", "")), self.token):
                return
            self.announced += 1
            if "rank" not in about:  # a process that has begun
                return
            with self.changed:
                if about["rank"] in self.ranks or self.complete:  # as after a restart
                    self.refused += 1
                else:
                    rank = self.ranks[about["rank"]] = Rank(about)
                    self.world = max(self.world, about["world"])
                    self.changed.notify_all()
                self._connections.add(connection)
                describe = self.describe_hosts and about["host"] not in self.hosts
                self.hosts.setdefault(about["host"], None)
            # The rank may end at once: `drain` knows it.
            answer(connection, clock=clock.host_clock_id(), describe=describe)
            while line := lines.readline(MAX_BYTES):
                message = json.loads(line)
                if "ping" in message:
                    answer(connection, at=clock.monotonic())
                elif "node" in message:
                    with suppress(ValueError):  # of another version of mlbench
                        self.hosts[about["host"]] = Node.model_validate(message["node"])
                else:
                    with self.changed:
                        if rank is not None:
                            _add(rank, message)
                            self.told(about, message)
                            self.log += message["log"][:MOST_LOGGED]
                        moved = message["stamps"]["kinds"]
                        self._stepped_at = clock.monotonic() if moved else self._stepped_at
        with self.changed:
            self._connections.discard(connection)
            if rank is not None:
                rank.ended = True
            self.changed.notify_all()


def answer(connection: socket.socket, **message: Any) -> None:
    """Send a message to a rank."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def _add(rank: Rank, message: dict[str, Any]) -> None:
    offset = message["offset"]
    moved: list[stamps.Stamp] = []
    for kind, *values in stamps.decode(message["stamps"]):
        count = stamps.MOMENTS[kind]
        moved.append((kind, *(at + offset for at in values[:count]), *values[count:]))
    steps = rank.splitter.feed(moved)
    rank.steps += steps
    rank.interrupted |= any(step.observed and step.validation > 0 for step in steps)
    rank.until, rank.error_s = message["now"] + offset, max(rank.error_s, message["error"])
    rank.notes, rank.peak_bytes, rank.last = message["notes"], message["peak_bytes"], message["last"]
    rank.cpu_wait_s, rank.flop = message.get("cpu_wait_s"), message.get("flop")
    if rank.waited_s is None:
        rank.waited_s = rank.cpu_wait_s

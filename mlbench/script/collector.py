"""Takes the steps of all ranks in over TCP, on one clock, and cuts them where the script printed its metric.

It listens on one address and closes any connection that does not know the run's token. Messages are JSON, one
a line; nothing is unpickled.
"""

import json
import math
import platform
import secrets
import socket
import threading
from array import array
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mlbench import clock
from mlbench.config.errors import UserError
from mlbench.config.goal import Goal
from mlbench.probe import stamps
from mlbench.record.messages import ValidationMessage
from mlbench.record.phases import PhaseTimes
from mlbench.record.record import Node
from mlbench.script import intervals
from mlbench.script.steps import Splitter, Step
from mlbench.script.warm_up import WarmUp

MAX_BYTES = 2**26  # bytes of a message; one of 10,000 steps has 2 MB
MOST_STEPS = 5_000  # without a metric, after which an interval ends
MOST_LOGGED = 100  # traces of a message
LEAVE_S = 1.5  # s in which a process that outlives the command closes its connection
SETTLED_S = 1.0  # s after a printed metric, in which the step that it was printed in may end
Interval = tuple[ValidationMessage, list[PhaseTimes]]


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


class Collector:
    """The listening end, in the process that ends the run.

    - address: host:port. token: what a rank must send first.
    - metric: the name of the printed metric. goal: the value that ends the run.
    """

    def __init__(self, host: str, *, metric: str, goal: Goal | None) -> None:
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
        self.doubts: list[str] = []  # sentences about lines whose number is no value, or not surely one
        self.announced = 0  # Python processes of the command that could be watched
        self.refused = 0  # processes beyond one a rank
        self.validated = 0  # steps of rank 0 that a validation came before
        self.settled = metric != "none"  # whether the record's metric and goal are
        self.log: list[str] = []  # traces of what the probes have kept from the script
        self.late = False  # whether the script told its goal after that
        self.reached = False
        self.intervals: list[Interval] = []
        self.step_s = array("d")  # of each step of rank 0, without validation
        self.metric, self.goal = metric, goal
        self._values: list[tuple[float, float]] = []  # moments and printed values
        self._start: float | None = None
        self._step, self._warm_up = 0, WarmUp()
        self._stepped_at = clock.monotonic()
        self._connections: set[socket.socket] = set()  # of ranks
        self._changed = threading.Condition()
        self._wall = clock.wall() - clock.monotonic()
        threading.Thread(target=self._accept, name="collector", daemon=True).start()

    @property
    def started_at(self) -> float:
        """Return when the first rank first touched data, s since 1970."""
        assert self._start is not None
        return self._start + self._wall

    @property
    def complete(self) -> bool:
        """Whether every rank has come."""
        return 0 < self.world <= len(self.ranks)

    @property
    def started(self) -> bool:
        """Whether every rank has sent a step, so that the run has begun."""
        return self._start is not None

    @property
    def steps(self) -> int:
        """Return how many steps every rank has made."""
        return self._step + min((len(rank.steps) for rank in self.ranks.values()), default=0)

    def made(self, rank: Rank) -> int:
        """Return how many steps a rank has made."""
        return self._step + len(rank.steps)

    @property
    def peak_bytes(self) -> int | None:
        """Return the most memory that a rank's GPU gave out; None on CPUs."""
        return max(filter(None, (rank.peak_bytes for rank in self.ranks.values())), default=None)

    def active(self, limit_s: float) -> bool:
        """Return whether a rank has told of its training in the last `limit_s` seconds."""
        return clock.monotonic() - self._stepped_at < limit_s

    def printed(self, value: float) -> None:
        """Take a value of the metric that the script has printed now."""
        with self._changed:
            self._values.append((clock.monotonic(), value))

    def settle(self) -> dict[str, Any]:
        """Return what rank 0 has told of itself, with its goal; another goal is not the record's."""
        with self._changed:
            self.settled = True
            return self.ranks[min(self.ranks)].about.copy()

    def close(self) -> None:
        """Stop listening; processes that outlive the command hear of its end, and send nothing more."""
        self._server.close()
        with self._changed:
            for connection in self._connections:
                with suppress(OSError):
                    _answer(connection, ended=True)
            self._changed.wait_for(lambda: not self._connections, LEAVE_S if self._connections else 0)

    def drain(self, timeout_s: float) -> None:
        """Wait until every rank that came has ended its connection."""
        with self._changed:
            self._changed.wait_for(lambda: all(rank.ended for rank in self.ranks.values()), timeout_s)

    def take(self, *, final: bool = False) -> list[Interval]:
        """Return the intervals that have ended since the last call; `final`: the rest, too.

        The first that reaches the goal is the last.
        """
        with self._changed:
            if final and self.ranks and not self.complete:  # e.g. WORLD_SIZE is left of another job
                self.doubts.append(f"{len(self.ranks)} of {self.world} ranks trained, and were measured")
                self.world = len(self.ranks)
            before = len(self.intervals)
            for rank in self.ranks.values() if final else ():
                rank.steps += rank.splitter.finish()
            while self.complete and not self.reached and self._cut(final=final):
                pass
            return self.intervals[before:]

    def _cut(self, *, final: bool) -> bool:
        """End one interval, if all of its steps are here; return whether to ask again."""
        ranks = [self.ranks[rank] for rank in sorted(self.ranks)][: self.world]
        if self._start is None:
            if not all(rank.steps for rank in ranks):
                return False
            self._start = min(rank.steps[0].begin for rank in ranks)
            for rank in ranks:
                rank.since = self._start
        count, value, until = min(len(rank.steps) for rank in ranks), None, None
        if self._values:
            until, value = self._values[0]
            if not final and not all(rank.passed(until) for rank in ranks):
                return False
            del self._values[0]
            if until <= self._start:
                return True
            done = bisect_right([step.end for step in ranks[0].steps], until)
            if done < len(ranks[0].steps) and ranks[0].steps[done].begin + ranks[0].steps[done].gap < until:
                done += 1  # printed within a step: the interval ends with it
            count = min(done, count)
            if not count and self.intervals and (not self._step or self.intervals[-1][0]["metrics"]):
                return True  # another rank has printed it, too
        elif not final and count < MOST_STEPS or not count:
            return False
        self._append(ranks, count=count, value=value, until=until)
        return True

    def _append(self, ranks: list[Rank], *, count: int, value: float | None, until: float | None) -> None:
        assert self._start is not None
        self.validated += sum(step.validation > 0 for step in ranks[0].steps[:count])
        times, ends = intervals.phase_times(
            [rank.steps for rank in ranks],
            since=[rank.since for rank in ranks],
            until=until,
            count=count,
            start=self._start,
            clock_error_s=max(rank.error_s for rank in ranks),
            warm_up=self._warm_up,
        )
        self.step_s.extend(step.end - step.begin - step.validation for step in ranks[0].steps[:count])
        for rank, end, each in zip(ranks, ends, times, strict=True):
            each.peak_memory_bytes = rank.peak_bytes
            if rank.cpu_wait_s is not None:
                each.cpu_wait_s, rank.waited_s = rank.cpu_wait_s - (rank.waited_s or 0.0), rank.cpu_wait_s
            del rank.steps[:count]
            rank.since = end
        self._step += count
        reached = self.goal is not None and value is not None and self.goal.reached(value)
        elapsed = ends[0] - self._start
        validation: ValidationMessage = {
            "epoch": 0.0,
            "step": self._step,
            "elapsed": elapsed,
            "wall": self.started_at + elapsed,
            "train_loss": None,
            "metrics": {} if value is None else {self.metric: value if math.isfinite(value) else None},
            "goal_reached": reached,
        }
        self.intervals.append((validation, times))
        self.reached = reached

    def _tell(self, about: dict[str, Any], message: dict[str, Any]) -> None:
        """Take in values that rank 0's script tells itself, and their goal where no other is set."""
        goal = about["goal"] = message["goal"]
        if about["rank"] or not goal:
            return
        if self.metric == "none":
            self.metric = goal["metric"]
        if goal["metric"] != self.metric:
            return  # the command has another
        if self.goal is None and goal["target"] is not None:
            self.late = self.settled
            self.goal = None if self.late else Goal(self.metric, goal["target"], goal["direction"])
        self._values += [(at + message["offset"], value) for at, value in message["values"]]

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
            with self._changed:
                if about["rank"] in self.ranks or self.complete:  # as after a restart
                    self.refused += 1
                else:
                    rank = self.ranks[about["rank"]] = Rank(about)
                    self.world = max(self.world, about["world"])
                    self._changed.notify_all()
                self._connections.add(connection)
                describe = self.describe_hosts and about["host"] not in self.hosts
                self.hosts.setdefault(about["host"], None)
            # The rank may end at once: `drain` knows it.
            _answer(connection, clock=clock.host_clock_id(), describe=describe)
            while line := lines.readline(MAX_BYTES):
                message = json.loads(line)
                if "ping" in message:
                    _answer(connection, at=clock.monotonic())
                elif "node" in message:
                    with suppress(ValueError):  # of another version of mlbench
                        self.hosts[about["host"]] = Node.model_validate(message["node"])
                else:
                    with self._changed:
                        if rank is not None:
                            _add(rank, message)
                            self._tell(about, message)
                            self.log += message["log"][:MOST_LOGGED]
                        moved = message["stamps"]["kinds"]
                        self._stepped_at = clock.monotonic() if moved else self._stepped_at
        with self._changed:
            self._connections.discard(connection)
            if rank is not None:
                rank.ended = True
            self._changed.notify_all()


def _answer(connection: socket.socket, **message: Any) -> None:
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

"""Cuts the steps of all ranks where the script printed its metric."""

import math
from array import array
from bisect import bisect_right
from typing import Any

from mlbench import clock
from mlbench.config.goal import Goal
from mlbench.record.messages import ValidationMessage
from mlbench.record.phases import PhaseTimes
from mlbench.script import intervals
from mlbench.script.listener import Listener, Rank
from mlbench.script.warm_up import WarmUp

MOST_STEPS = 5_000  # without a metric, after which an interval ends
Interval = tuple[ValidationMessage, list[PhaseTimes]]


class Collector(Listener):
    """Cuts the steps of all ranks into intervals.

    - metric: the name of the printed metric. goal: the value that ends the run.
    """

    def __init__(self, host: str, *, metric: str, goal: Goal | None) -> None:
        self.doubts: list[str] = []  # sentences about lines whose number is no value, or not surely one
        self.validated = 0  # steps of rank 0 that a validation came before
        self.settled = metric != "none"  # whether the record's metric and goal are
        self.late = False  # whether the script told its goal after that
        self.reached = False
        self.intervals: list[Interval] = []
        self.step_s = array("d")  # of each step of rank 0, without validation
        self.metric, self.goal = metric, goal
        self._values: list[tuple[float, float]] = []  # moments and printed values
        self._start: float | None = None
        self._step, self._warm_up = 0, WarmUp()
        self._wall = clock.wall() - clock.monotonic()
        super().__init__(host)  # last: it listens at once

    @property
    def started_at(self) -> float:
        """Return when the first rank first touched data, s since 1970."""
        assert self._start is not None
        return self._start + self._wall

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

    def printed(self, value: float) -> None:
        """Take a value of the metric that the script has printed now."""
        with self.changed:
            self._values.append((clock.monotonic(), value))

    def settle(self) -> dict[str, Any]:
        """Return what rank 0 has told of itself, with its goal; another goal is not the record's."""
        with self.changed:
            self.settled = True
            return self.ranks[min(self.ranks)].about.copy()

    def take(self, *, final: bool = False) -> list[Interval]:
        """Return the intervals that have ended since the last call; `final`: the rest, too.

        The first that reaches the goal is the last.
        """
        with self.changed:
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

    def told(self, about: dict[str, Any], message: dict[str, Any]) -> None:
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

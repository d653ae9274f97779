"""Evaluate a study over emulated networks: times over bandwidth and delay, break-evens, a prediction.

- A cell is all runs of one task, number of workers, sync strategy, bandwidth and delay. Other differences
  between points are in the name of the strategy, so no cell replaces another.
- A break-even is between two neighbouring bandwidths with different faster strategies. It is interpolated on
  logarithmic axes. Its interval ends at the bandwidths at which the quotient's interval passes 1.
- Performance profile: the share of problems that a strategy solves within tau times the best one's time
  (Dolan and More 2002; AlgoPerf scores with it, arXiv 2306.07179).
- Prediction: latency and bandwidth of the links as measured before the run (alpha-beta model, Thakur et al.
  2005: a ring of n ranks has 2 (n - 1) steps and sends 2 (n - 1) / n of the gradients), after the computing.
  A step of gloo's ring takes a round trip: its receiver first reports that it is ready
  (benchmarks/delays.py).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, Literal

from mlbench.analysis.bootstrap import FEWEST_SHOWN, drawable, median, ratio
from mlbench.analysis.compare import strategy_labels
from mlbench.analysis.points import Point, time_to_goal
from mlbench.plugins.emulation import measurement
from mlbench.plugins.emulation.packets import TCP_DATA_SHARE
from mlbench.record.format import number
from mlbench.record.phases import EXPOSED
from mlbench.record.record import Record

Quantity = Literal["step_s", "time_to_accuracy"]
AXES = ("network.name", "network.bandwidth_mbit_s", "network.delay_ms")  # fields that define a cell


@dataclass(frozen=True)
class SettingRuns:
    """The runs of one setting: seconds, one value a run, infinite for a missed goal.

    - predicted_s: of a step. None if the strategy is not one all-reduce of the gradients a step.
    """

    task: str
    workers: int
    sync: str
    bandwidth_mbit_s: float
    delay_ms: float
    step_s: tuple[float, ...]
    time_to_accuracy: tuple[float, ...]
    exposed: tuple[float, ...]  # communication as a share of a step; no value of a compiled run
    predicted_s: tuple[float, ...]

    @property
    def setting(self) -> tuple[str, int, float]:
        """The common setting of strategies that are compared over bandwidths."""
        return self.task, self.workers, self.delay_ms

    @property
    def error(self) -> float | None:
        """The median of the prediction's relative error, positive if it is too slow."""
        if not self.predicted_s:
            return None
        return median([p / s - 1 for p, s in zip(self.predicted_s, self.step_s, strict=True)])


@dataclass(frozen=True)
class BreakEven:
    """The bandwidth at which two strategies are equally fast.

    `winner` is the faster one below it, `loser` the one above.
    low, high: Mbit/s at which the interval of the quotient passes 1. None if it does not within the grid.
    """

    task: str
    workers: int
    delay_ms: float
    winner: str
    loser: str
    bandwidth_mbit_s: float
    low: float | None
    high: float | None
    gain: float  # times by which the winner is faster at `gain_mbit_s`
    gain_mbit_s: float  # the lowest bandwidth from which it stays faster up to the break-even

    def __str__(self) -> str:
        where = f"{self.task}, {self.workers} workers, {self.delay_ms:g} ms"
        sure = "not shown with so few runs"
        if self.low is not None and self.high is not None:
            sure = f"95 % interval {number(self.low)} to {number(self.high)}"
        return (
            f"{where}: below {number(self.bandwidth_mbit_s)} Mbit/s ({sure}) {self.winner} beats "
            f"{self.loser}, by {self.gain:.2f} times at {self.gain_mbit_s:g} Mbit/s"
        )


def cells(points: Iterable[Point]) -> list[SettingRuns]:
    """Return the cells of the points on emulated networks, each with all its runs that measured phases."""
    timed = [
        (point, runs)
        for point in points
        if point.emulated and (runs := [run for run in point.records if run.phases and run.steps])
    ]
    labels = strategy_labels([point for point, _ in timed], but=AXES)
    measured = [_cell(point, runs, label) for (point, runs), label in zip(timed, labels, strict=True)]
    return sorted(measured, key=lambda cell: (*cell.setting, cell.sync, cell.bandwidth_mbit_s))


def _cell(point: Point, runs: Sequence[Record], label: str) -> SettingRuns:
    network = runs[0].experiment.network
    predicted = [predicted_step_s(run) for run in runs]
    return SettingRuns(
        task=point.task,
        workers=point.workers,
        sync=label,
        bandwidth_mbit_s=network.bandwidth_mbit_s or math.nan,
        delay_ms=network.delay_ms,
        step_s=tuple(
            math.fsum(spread.mean for spread in run.phases.values()) / run.timed_steps for run in runs
        ),
        time_to_accuracy=tuple(time_to_goal(run) for run in runs) if point.goal else (),
        exposed=tuple(share for run in runs if (share := run.exposed_communication_share) is not None),
        predicted_s=() if None in predicted else tuple(filter(None, predicted)),
    )


def predicted_step_s(run: Record) -> float | None:
    """Return the predicted time of a step: its computing as measured, then the ring's messages, s.

    The slowest link and direction count. No overlap is assumed, so the prediction is too long if backward
    hides communication.
    """
    if (
        run.experiment.sync.name != "ddp"
        or (links := measurement.of(run)) is None
        or not run.gradient_bytes
        or run.workers < 2
        or not {*EXPOSED} <= {*run.phases}  # a compiled step hides its computing and communication
    ):
        return None
    measured, n = links.measured, run.workers
    bandwidth = min(min(link.bandwidth_mbit_s, link.bandwidth_back_mbit_s) for link in measured) * 1e6 / 8
    bandwidth *= TCP_DATA_SHARE
    round_trips = 1.0 if run.experiment.backend.name == "gloo" else 0.5  # a step
    latency_s = round_trips * max(link.round_trip_ms for link in measured) / 1e3
    computing = math.fsum(spread.mean for name, spread in run.phases.items() if name not in EXPOSED)
    return computing / run.timed_steps + 2 * (n - 1) * (latency_s + run.gradient_bytes / n / bandwidth)


def break_evens(measured: Sequence[SettingRuns], quantity: Quantity = "step_s") -> list[BreakEven]:
    """Return the break-evens of every two strategies that were measured over bandwidths."""
    crossings = []
    for setting in dict.fromkeys(cell.setting for cell in measured):
        lines: dict[str, dict[float, SettingRuns]] = {}
        for cell in measured:
            if cell.setting == setting and getattr(cell, quantity):
                lines.setdefault(cell.sync, {})[cell.bandwidth_mbit_s] = cell
        for name, other in combinations(sorted(lines), 2):
            crossings += _between(setting, lines[name], lines[other], quantity)
    return crossings


def performance_profiles(measured: Sequence[SettingRuns]) -> dict[str, list[tuple[float, float]]]:
    """Return by strategy the steps of its profile: tau, and the share of problems solved within it.

    A problem is a task with workers, bandwidth and delay that every strategy has run. A strategy that missed
    the goal in half of its runs or more does not solve it.
    """
    problems: dict[tuple[Any, ...], dict[str, float]] = {}
    strategies = {cell.sync for cell in measured}
    for cell in measured:
        if cell.time_to_accuracy:
            problem = problems.setdefault((*cell.setting, cell.bandwidth_mbit_s), {})
            problem[cell.sync] = median(cell.time_to_accuracy)
    whole = [times for times in problems.values() if times.keys() == strategies]
    profiles = {}
    for name in sorted(strategies):
        quotients = (times[name] / min(times.values()) for times in whole)
        solved = sorted(filter(math.isfinite, quotients))
        profiles[name] = [(tau, number / len(whole)) for number, tau in enumerate(solved, start=1)]
    return profiles


def _between(
    setting: tuple[str, int, float],
    a: dict[float, SettingRuns],
    b: dict[float, SettingRuns],
    quantity: Quantity,
) -> list[BreakEven]:
    """Return the break-evens of two strategies: their quotient passes 1 between two bandwidths."""
    shared = sorted(a.keys() & b.keys())
    ratios = {
        rate: ratio(getattr(a[rate], quantity), getattr(b[rate], quantity), resamples=2000) for rate in shared
    }
    few = any(len(getattr(line[rate], quantity)) < FEWEST_SHOWN for line in (a, b) for rate in shared)
    first, second = (next(iter(line.values())).sync for line in (a, b))
    crossings = []
    for left, right in pairwise(shared):
        below, above = ratios[left].value, ratios[right].value
        if not drawable(below) or not drawable(above) or (below - 1) * (above - 1) >= 0:
            continue
        place_mbit_s = _interpolated(left, right, below, above)
        lines = [] if few else [[getattr(ratios[rate], end) for rate in shared] for end in ("low", "high")]
        passes = [_crossing(shared, line, place_mbit_s) for line in lines]
        ends = sorted(end for end in passes if end is not None)
        around = len(ends) == 2 and ends[0] <= place_mbit_s <= ends[1]
        faster = first if below < 1 else second
        lowest, gain = left, below
        for rate in reversed(shared[: shared.index(left)]):
            value = ratios[rate].value
            if not drawable(value) or (value - 1) * (below - 1) <= 0:
                break
            lowest, gain = rate, value
        crossings.append(
            BreakEven(
                *setting,
                winner=faster,
                loser=second if faster == first else first,
                bandwidth_mbit_s=place_mbit_s,
                low=ends[0] if around else None,
                high=ends[1] if around else None,
                gain=max(gain, 1 / gain),
                gain_mbit_s=lowest,
            )
        )
    return crossings


def _crossing(rates: Sequence[float], values: Sequence[float | None], near: float) -> float | None:
    """Return the bandwidth next to `near` at which the values pass 1."""
    crossings = [
        _interpolated(left, right, below, above)
        for (left, below), (right, above) in pairwise(zip(rates, values, strict=True))
        if drawable(below) and drawable(above) and (below - 1) * (above - 1) < 0
    ]
    return min(crossings, key=lambda rate: abs(math.log(rate / near)), default=None)


def _interpolated(left: float, right: float, below: float, above: float) -> float:
    """Return the bandwidth at which the line through two quotients passes 1, on logarithmic axes."""
    share = math.log(below) / (math.log(below) - math.log(above))
    return math.exp(math.log(left) + share * (math.log(right) - math.log(left)))

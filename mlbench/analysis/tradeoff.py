"""Weigh price against performance: which number of workers is worth its money, and how sure that is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlbench.analysis.bootstrap import FEWEST_SHOWN, Ratio, ratio
from mlbench.analysis.compare import slower_points
from mlbench.analysis.points import Point
from mlbench.analysis.pooling import calibration
from mlbench.record.format import counted, factor


@dataclass(frozen=True)
class Optimum:
    """The point with the least product of price and time, with its comparison to the others in words."""

    point: Point
    dominated: tuple[Point, ...]  # worse, and shown to be (`slower_points`)
    undecided: tuple[Point, ...]  # not shown to be worse
    sentence: str


def optimum(curve: Sequence[Point], among: Sequence[Point] = ()) -> Optimum | None:
    """Return the price-performance optimum of points that differ in their workers alone.

    None if fewer than two of them may be compared. The price index of two points with one base differs by the
    quotient of nodes x time^2. So points are compared with each other and need no one-worker point. `among`:
    all points of the page, for which together the comparisons hold at their level.
    """
    candidates = [
        point for point in curve if point.exclusion_reason is None and math.isfinite(_product(point))
    ]
    if len(candidates) < 2:
        return None
    best = min(candidates, key=lambda point: (_product(point), point.workers))
    page = list({id(point): point for point in (*among, *candidates)}.values())
    worse = slower_points(page, [[math.sqrt(point.nodes) * time for time in point.times] for point in page])
    places = {id(point): i for i, point in enumerate(page)}
    dominated = [p for p in candidates if (places[id(p)], places[id(best)]) in worse]
    undecided = [p for p in candidates if p is not best and p not in dominated]
    return Optimum(best, tuple(dominated), tuple(undecided), _words(best, candidates, dominated, undecided))


def trade(point: Point, other: Point) -> Ratio:
    """Return price x time to the goal of one point over another's, at one price a node."""
    times = ratio(point.times, other.times)
    nodes = point.nodes / other.nodes
    return Ratio(*(value if value is None else nodes * value**2 for value in vars(times).values()))


def format_ratio(quotient: Ratio) -> str:
    """Return a ratio with its interval in words."""
    if quotient.value is None:
        return "unknown"
    if quotient.low is None or quotient.high is None:
        return factor(quotient.value)
    ends = f"{factor(quotient.low)} to {factor(quotient.high)}"
    return f"{factor(quotient.value)}, 95 % interval {ends}"


def _product(point: Point) -> float:
    return point.nodes * point.median_s**2


def _words(
    best: Point, candidates: Sequence[Point], dominated: Sequence[Point], undecided: Sequence[Point]
) -> str:
    sentence = f"{counted(best.workers, 'worker')} have the best price-performance"
    base = next((point for point in candidates if point.workers == 1), None)
    if best.workers == 1:
        sentence = "One worker has the best price-performance"
    elif base is not None:
        sentence += f" (price index {format_ratio(trade(best, base))}, relative to one worker)"
    if dominated:
        sentence += f", significantly better than {_counts(dominated)}"
    joint = ", and against" if dominated else ", but against"
    apart = [point for point in undecided if calibration(point.records, best.records).difference]
    if close := [point for point in undecided if point not in apart]:
        fewest = min(point.n for point in (best, *close))
        because = f": {counted(fewest, 'run')} per point cannot show one" if fewest < FEWEST_SHOWN else ""
        sentence += f"{joint} {_counts(close)} no significant difference{because}"
    if apart:
        joint = ", and against" if close else joint
        sentence += f"{joint} {_counts(apart)} no comparison: the machine was not equally fast"
    return sentence + "."


def _counts(some: Sequence[Point]) -> str:
    """Return the numbers of workers in words, e.g. 1, 2 and 4 workers."""
    names = [str(point.workers) for point in some]
    joined = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{joined} worker{'' if names == ['1'] else 's'}"

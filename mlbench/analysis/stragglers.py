"""Find the rank that keeps the others waiting, reported only when the run shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import comb
from statistics import median

from mlbench.record.format import duration, percent
from mlbench.record.phases import LatenessBlock
from mlbench.record.record import Record

CONFIDENCE = 0.99  # of the sentence, whatever the number of ranks
LEAST = 0.1  # of a step (chosen after 4 of 40 healthy runs had a rank named, 2026-11-25, performance.md)


@dataclass(frozen=True)
class Straggler:
    """A rank that launches its gradients later than the others.

    - last: share of the stamped steps in which no rank was later. chance: the share of equal ranks.
    - median_s, low_s, high_s: how much later than the mean of the others, with an interval.
    """

    rank: int
    last: float
    chance: float
    median_s: float
    low_s: float
    high_s: float


def of_run(record: Record) -> Straggler | None:
    """Return the rank of a run that keeps the others waiting, or None if none is shown to."""
    step_s = record.step_s.get("p50", 0.0)
    return straggler(record.lateness, clock_error_s=record.clock_error_s, step_s=step_s)


def straggler(
    lateness: Sequence[Sequence[LatenessBlock]], *, clock_error_s: float = 0.0, step_s: float = 0.0
) -> Straggler | None:
    """Return the rank that is clearly late. None if none is, or if the run does not show it.

    `lateness[r]` are rank r's stretches of steps over the run. Steps that follow one another are alike, so a
    stretch counts once, by its median. The interval of their median is that of the sign test, exact for any
    distribution (Conover 1999, Practical Nonparametric Statistics, section 3.2). It holds at CONFIDENCE over
    all ranks together (Bonferroni). Lateness that the clocks' error could explain does not count, and no rank
    is named below LEAST of a step.
    """
    ranks, tail = len(lateness), (1 - CONFIDENCE) / 2 / max(1, len(lateness))
    if ranks < 2 or not all(lateness):
        return None
    rank = max(range(ranks), key=lambda each: median(block.median_s for block in lateness[each]))
    ordered = sorted(block.median_s for block in lateness[rank])
    n = len(ordered)
    inside = _inside(n, tail)
    if not inside:
        return None  # too few stretches
    low, high = ordered[inside - 1], ordered[-inside]
    steps = sum(block.steps for block in lateness[rank])
    last = sum(block.last for block in lateness[rank]) / steps
    if low <= max(clock_error_s, LEAST * step_s) or last <= 1 / ranks:
        return None
    return Straggler(rank, last, 1 / ranks, median(ordered), low, high)


@cache  # the runs of a study have few numbers of ranks and stretches
def _inside(n: int, tail: float) -> int:
    """Return from which of n ordered values on, counted from either end, the sign test's interval reaches."""
    sums = accumulate(comb(n, j) for j in range(n // 2))  # of 2^n, exact: the card needs no SciPy
    return sum(partial / 2**n <= tail for partial in sums)


def latest(lateness: Sequence[Sequence[LatenessBlock]]) -> str | None:
    """Return the rank that launched its gradients last, and how late. None if nothing was compared."""
    late = [median(block.median_s for block in blocks) for blocks in lateness if blocks]
    if len(late) < max(2, len(lateness)):
        return None
    return f"rank {late.index(max(late))}, {duration(max(late))} after the mean of the others"


def sentence(late: Straggler) -> str:
    """Return the straggler in words."""
    waiting, before = others(late.rank, round(1 / late.chance))
    return (
        f"rank {late.rank} keeps {waiting} waiting: it came last in {percent(late.last)} of the steps "
        f"(by chance {percent(late.chance)}), {duration(late.median_s)} after {before} "
        f"({duration(late.low_s)} to {duration(late.high_s)})"
    )


def others(rank: int, ranks: int) -> tuple[str, str]:
    """Return who waits for a rank, and after whom it comes."""
    other = f"rank {1 - rank}"
    return (other, other) if ranks == 2 else ("the others", "the mean of the others")

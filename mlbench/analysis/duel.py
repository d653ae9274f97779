"""Which of two is faster, decided as pairs of runs come in: a group-sequential paired test of logarithms.

One pair is one run of A and one of B, in random order. Both the test and its interval hold at every look, so
whoever stops at the first decision is wrong no more often than LEVEL promises (docs/statistics.md, "Duels").
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.01  # share of duels of equal commands that may be called different
# Pairs after which the order may be decided: each one at first, then steps of a fifth.
LOOKS = (4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 33, 40, 48, 57, 68, 80)
MOST_PAIRS = LOOKS[-1]
# Pairs from which a signed-rank test takes the place of the t-test, whose interval one slow run can widen
# several times. Ranks of fewer pairs cannot reach NOMINAL_LEVEL: the level of equal signs is 2 / 2**pairs.
RANKED = 12
# Share of duels of equal commands in which any look reaches a two-sided level (Pocock 1977, "Group
# sequential methods in the design and analysis of clinical trials", with these two tests;
# `python benchmarks/duels.py --levels --duels 2000000`, 2026-11-29).
NOMINAL = {
    0.0001: 8.85e-06,
    0.001: 9.32e-05,
    0.005: 0.000488,
    0.01: 0.00101,
    0.02: 0.00223,
    0.05: 0.00632,
    0.1: 0.0142,
    0.2: 0.0336,
    0.5: 0.114,
    1.0: 1.0,
}
NOMINAL_LEVEL = 0.0009  # of each look; below that of LEVEL by what the simulation may be wrong, and by drifts
FINEST = 1e-6  # spread of logarithms below which values count as equal: a clock tells no less of a second
Decision = Literal["faster", "slower", "same"]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """What the pairs show so far.

    - ratio: B over A, the geometric mean of the pairs, from RANKED pairs on their pseudomedian.
    - low, high: its interval at 1 - LEVEL, at every look.
    - p: the share of duels of equal commands that look as different as this at any look; at least 1e-4.
    - decision: of B, None while nothing is decided.
    """

    pairs: int
    ratio: float
    low: float
    high: float
    p: float
    decision: Decision | None

    @property
    def largest(self) -> float:
        """Return the largest difference, as a share, that the interval holds."""
        return max(self.high - 1, 1 - self.low)


def judge(
    a: Sequence[float],
    b: Sequence[float],
    *,
    margin: float = 0.0,
    less_is_better: bool = True,
    ended: bool = False,
) -> Verdict:
    """Return what pairs of positive values show.

    Args:
        a, b: one value a pair, in the order of the pairs.
        margin: share by which B may differ from A and still be the same, e.g. 0.01; 0: never the same.
        less_is_better: False for rates.
        ended: Whether no pair follows. Then it decides like those looks that are left out.

    Raises:
        ValueError: with fewer pairs than LOOKS begin with, or a value that is not positive and finite.
    """
    logs = np.log(np.asarray(b, dtype=float)) - np.log(np.asarray(a, dtype=float))
    count = len(logs)
    if count < LOOKS[0] or not np.isfinite(logs).all():
        raise ValueError(f"a duel is judged by {LOOKS[0]} pairs of positive numbers or more")
    middle, low, high, nominal = (_by_rank if count >= RANKED else _by_value)(logs)
    decision: Decision | None = None
    if count in LOOKS or ended:
        if low > 0 or high < 0:
            decision = "faster" if (middle < 0) == less_is_better else "slower"
        if margin and math.log1p(-margin) < low and high < math.log1p(margin):
            decision = "same"
    return Verdict(count, math.exp(middle), math.exp(low), math.exp(high), overall(nominal), decision)


def _by_value(logs: Array) -> tuple[float, float, float, float]:
    """Return mean, interval and two-sided level by Student's t-test."""
    from scipy.special import stdtr, stdtrit  # scipy.stats takes a second to import

    freedom, mean = len(logs) - 1, float(logs.mean())
    error = max(float(logs.std(ddof=1)), FINEST) / math.sqrt(len(logs))
    half = float(stdtrit(freedom, 1 - NOMINAL_LEVEL / 2)) * error
    return mean, mean - half, mean + half, 2 * float(stdtr(freedom, -abs(mean) / error))


def _by_rank(logs: Array) -> tuple[float, float, float, float]:
    """Return pseudomedian, interval and two-sided level by Wilcoxon's signed-rank test.

    All three come from the means of every two values and each with itself (Hodges and Lehmann 1963,
    "Estimates of location based on rank tests").
    """
    values = np.where(np.abs(logs) < FINEST, 0.0, logs)
    first, second = np.triu_indices(len(values))
    means = np.sort((values[first] + values[second]) / 2)
    shares = signed_ranks(len(values))
    outside = int(np.searchsorted(shares, NOMINAL_LEVEL / 2, side="right"))  # of the means, at each end
    positive = float((means > 0).sum() + (means == 0).sum() / 2)
    nominal = min(1.0, 2 * float(shares[math.ceil(min(positive, len(means) - positive))]))
    return float(np.median(means)), float(means[outside - 1]), float(means[-outside]), nominal


@cache
def signed_ranks(pairs: int) -> Array:
    """Return the share of sign patterns whose positive ranks 1 to `pairs` add up to 0, 1, 2, ... at most."""
    shares = np.ones(1)
    for rank in range(1, pairs + 1):
        shares = (np.pad(shares, (0, rank)) + np.pad(shares, (rank, 0))) / 2
    return np.cumsum(shares)


def overall(nominal: float) -> float:
    """Return how many duels of equal commands reach this two-sided level at any look."""
    shares, levels = [*NOMINAL], [*NOMINAL.values()]
    if nominal <= levels[0]:
        return shares[0]
    n = min(bisect_right(levels, nominal), len(levels) - 1)
    weight = math.log(nominal / levels[n - 1]) / math.log(levels[n] / levels[n - 1])
    return math.exp((1 - weight) * math.log(shares[n - 1]) + weight * math.log(shares[n]))


def orders(count: int, random: np.random.Generator) -> list[str]:
    """Return the order of so many pairs, "AB" or "BA": of each two in a row one of each, by chance.

    So a speed that drifts evenly favours neither side, and nobody can know which side is next.
    """
    blocks = random.integers(0, 2, size=(count + 1) // 2)
    return [order for block in blocks for order in (("AB", "BA") if block else ("BA", "AB"))][:count]

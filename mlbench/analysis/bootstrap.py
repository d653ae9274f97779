"""Summarise repeated runs: medians with bootstrap intervals, and ratios of two samples.

A run that missed its goal enters as infinite time: it can only make a number worse, never drop out of it.
docs/statistics.md explains the choice of these statistics and how often their intervals cover the truth.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95  # of every interval
RESAMPLES = 10_000  # Efron and Tibshirani 1993, 14.3: 1,000 at least for the ends of a percentile interval
# Runs of either point below which no difference is called shown: with two the interval of a ratio misses in
# every third study, with three in every tenth, half of them on either side (docs/statistics.md).
FEWEST_SHOWN = 3
FEWEST_OLYMPIC = 3  # values, so that one is left when the best and the worst are dropped
SEED = 0  # any constant: equal runs give equal intervals
BLOCK = 2**20  # draws in memory at a time

Array = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Interval:
    """The ends of a confidence interval, in the unit of the values. `high` may be infinite."""

    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """A quotient of two medians with its interval, with None for what the data do not determine.

    `value` is None when both medians are infinite or both are 0. `low` and `high` are None when a sample has
    one value.
    """

    value: float | None
    low: float | None
    high: float | None


def drawable(value: float | None, *, log: bool = True) -> TypeGuard[float]:
    """Return whether a value can be drawn on an axis, for `log` also on a logarithmic one."""
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def median(values: ArrayLike) -> Any:
    """Return the median over the last axis: a float for one sample. Infinite values sort last."""
    ordered = np.sort(np.asarray(values, dtype=float), axis=-1)
    count = ordered.shape[-1]
    if count == 0:
        raise ValueError("the median of no value is not defined")
    middle = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return float(middle) if middle.ndim == 0 else middle


def olympic_mean(values: ArrayLike) -> float | None:
    """Return the mean without the best and the worst value, or None for fewer than three values.

    MLPerf Training's rule (training_policies, "Results"): one run that missed its goal is dropped as the
    worst, a second one makes the mean infinite.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    if len(ordered) < FEWEST_OLYMPIC:
        return None
    return float(np.mean(ordered[1:-1]))


def interval(values: ArrayLike, *, resamples: int = RESAMPLES) -> Interval | None:
    """Return the bootstrap interval of the median of one sample. None for one value, which has no spread.

    The ends are percentiles of the resampled median. They are moved outwards as Student's t requires for n
    values, because those of small samples would be too narrow. This is the expanded percentile interval
    (Hesterberg 2015, "What teachers should know about the bootstrap"). An interval never leaves the values'
    range. Below six values it is that whole range, and covers a median with probability 1 - 2^(1 - n) only.
    """
    sample = _sample(values)
    if len(sample) < 2:
        return None
    (middles,) = _middles((len(sample),), resamples)
    drawn = _medians(sample, middles)
    return _ends(drawn, drawn, tail=_expanded((1 - LEVEL) / 2, len(sample)))


def ratio(a: ArrayLike, b: ArrayLike, *, paired: bool = False, resamples: int = RESAMPLES) -> Ratio:
    """Return median(a) / median(b) of two samples with the bootstrap percentile interval.

    Independent samples are resampled each, pairs (the same seeds in the same order) as pairs. A resample in
    which both medians are infinite is undetermined. It counts as 0 at the lower end and as infinite at the
    upper one.
    """
    if paired:
        above, below = (np.asarray(values, dtype=float) for values in (a, b))
    else:
        above, below = _sample(a), _sample(b)
    value = float(_divide(median(above), median(below)))
    value = None if math.isnan(value) else value
    if len(above) < 2 or len(below) < 2:
        return Ratio(value, None, None)
    if paired:
        draws = _draws(np.random.default_rng(SEED), len(above), resamples)
        medians = [(median(above[pairs]), median(below[pairs])) for pairs in draws]
        drawn = _divide(*map(np.concatenate, zip(*medians, strict=True)))
    else:
        middles = _middles((len(above), len(below)), resamples)
        drawn = _divide(*map(_medians, (above, below), middles))
    ends = _ends(
        np.where(np.isnan(drawn), 0.0, drawn),
        np.where(np.isnan(drawn), np.inf, drawn),
        tail=(1 - LEVEL) / 2,
    )
    return Ratio(value, ends.low, ends.high)


def max_coverage(count: int) -> float:
    """Return how often the interval of a median covers it at best: a few values' range is all there is.

    It misses when all values lie on one side of the median: 1 - 2^(1 - n), which is below 95 % up to n = 5.
    """
    return min(LEVEL, 1 - 2.0 ** (1 - count))


def _sample(values: ArrayLike) -> Array:
    """Return the values in ascending order, so that an interval does not depend on theirs."""
    sample = np.sort(np.asarray(values, dtype=float))
    if sample.ndim != 1 or not len(sample) or np.isnan(sample).any():
        raise ValueError(f"a sample is one or more numbers, got: {values}")
    return sample


def _draws(random: np.random.Generator, count: int, resamples: int) -> Iterator[Places]:
    """Yield the places of resamples of `count` values, a resample a row, a block of rows at a time."""
    rows = max(1, BLOCK // count)
    for first in range(0, resamples, rows):
        yield random.integers(0, count, size=(min(rows, resamples - first), count))


@lru_cache(maxsize=64)  # points have few numbers of runs, and samples of one size the same draws
def _middles(counts: tuple[int, ...], resamples: int) -> list[tuple[Places, Places]]:
    """Return the places of the middle of each resample, for samples of these sizes, drawn in turn.

    That is the place of the lower and of the upper middle value in the sample in ascending order.
    """
    random = np.random.default_rng(SEED)
    middles = []
    for count in counts:
        ends = [(count - 1) // 2, count // 2]
        blocks = [np.partition(places, ends, axis=-1)[:, ends] for places in _draws(random, count, resamples)]
        lower, upper = np.concatenate(blocks).T
        middles.append((lower.copy(), upper.copy()))
    return middles


def _medians(sample: Array, middles: tuple[Places, Places]) -> Array:
    lower, upper = middles
    return (sample[lower] + sample[upper]) / 2


def _divide(above: ArrayLike, below: ArrayLike) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.divide(above, below))


def _ends(lower: Array, upper: Array, *, tail: float) -> Interval:
    """Return the `tail` quantile of `lower` and the 1 - `tail` quantile of `upper`, both drawn values.

    Without interpolation, because one between a finite and an infinite value is no number.
    """
    index = math.floor(tail * len(lower))
    last = len(upper) - 1 - index
    return Interval(float(np.partition(lower, index)[index]), float(np.partition(upper, last)[last]))


@lru_cache(maxsize=64)
def _expanded(tail: float, count: int) -> float:
    """Return the tail probability that makes a percentile interval as wide as Student's t."""
    from scipy.special import ndtr, stdtrit  # scipy.stats takes a second to import

    return float(ndtr(math.sqrt(count / (count - 1)) * stdtrit(count - 1, tail)))

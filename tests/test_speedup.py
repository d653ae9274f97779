"""The statistics against independent computations, and what their intervals promise on made-up samples."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mlbench import speedup
from mlbench.speedup import interval, median, olympic_mean, ratio

SIMULATIONS = 2000  # made-up studies a coverage is measured with
times = st.floats(0.1, 1e6)  # s
samples = st.lists(times, min_size=1, max_size=9)
settings.register_profile("short", max_examples=30, deadline=None)
settings.load_profile("short")


@given(samples)
def test_the_median_is_python_s(values: list[float]) -> None:
    assert median(values) == statistics.median(values)


@given(st.lists(times, min_size=3, max_size=9))
def test_the_olympic_mean_drops_the_best_and_the_worst(values: list[float]) -> None:
    kept = sorted(values)[1:-1]
    assert olympic_mean(values) == pytest.approx(statistics.fmean(kept))


def test_the_olympic_mean_forgives_one_missed_run_and_no_second() -> None:
    assert olympic_mean([3.0, 1.0, math.inf, 2.0]) == 2.5
    assert olympic_mean([3.0, 1.0, math.inf, math.inf]) == math.inf
    assert olympic_mean([1.0, 2.0]) is None


def test_missed_runs_count_as_infinite_in_the_median() -> None:
    assert median([5.0, math.inf, 4.0]) == 5.0
    assert median([5.0, math.inf]) == math.inf
    assert median([math.inf, math.inf]) == math.inf
    assert interval([5.0, 4.0, 6.0, math.inf, 5.5]) == speedup.Interval(4.0, math.inf)


def test_one_run_has_no_interval() -> None:
    assert interval([5.0]) is None
    assert ratio([6.0], [3.0]) == speedup.Ratio(2.0, None, None)
    assert ratio([6.0, 7.0, 8.0], [3.5]) == speedup.Ratio(2.0, None, None)


@pytest.mark.parametrize("values", [[], [1.0, math.nan]])
def test_what_is_no_sample_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="one or more numbers"):
        interval(values)


def test_the_interval_is_scipy_s_percentile_bootstrap_at_the_expanded_level() -> None:
    values = np.random.default_rng(3).normal(100, 10, 12)
    tail = float(stats.norm.cdf(math.sqrt(12 / 11) * stats.t.ppf(0.025, 11)))
    for statistic, own in ((np.median, median), (np.mean, lambda drawn: drawn.mean(-1))):
        theirs = stats.bootstrap(
            (values,),
            statistic,
            confidence_level=1 - 2 * tail,
            method="percentile",
            n_resamples=20_000,
            rng=np.random.default_rng(5),
        ).confidence_interval
        found = interval(values, own)
        assert found is not None
        assert (found.low, found.high) == pytest.approx(tuple(theirs), rel=0.01)


def test_the_ratio_is_scipy_s_percentile_bootstrap_of_two_samples() -> None:
    random = np.random.default_rng(4)
    above, below = random.normal(100, 10, 9), random.normal(40, 4, 7)
    theirs = stats.bootstrap(
        (above, below),
        lambda a, b, axis: np.median(a, axis=axis) / np.median(b, axis=axis),
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(5),
    ).confidence_interval
    found = ratio(above, below)
    assert found.value == pytest.approx(np.median(above) / np.median(below))
    assert (found.low, found.high) == pytest.approx(tuple(theirs), rel=0.02)


def test_a_ratio_of_missed_runs_tells_nothing_or_zero_or_infinity() -> None:
    missed = [math.inf] * 3
    assert ratio(missed, missed) == speedup.Ratio(None, 0.0, math.inf)
    assert ratio([1.0, 2.0, 3.0], missed) == speedup.Ratio(0.0, 0.0, 0.0)
    assert ratio(missed, [1.0, 2.0, 3.0]) == speedup.Ratio(math.inf, math.inf, math.inf)


@given(samples, samples, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_does_not_matter(a: list[float], b: list[float], random) -> None:
    mixed = random.sample(a, len(a))
    assert interval(mixed, resamples=200) == interval(a, resamples=200)
    assert ratio(mixed, b, resamples=200) == ratio(a, b, resamples=200)


@given(samples, samples, st.sampled_from([0.25, 2.0, 1024.0]))
def test_a_ratio_does_not_depend_on_the_unit(a: list[float], b: list[float], factor: float) -> None:
    scaled = ratio([factor * x for x in a], [factor * x for x in b], resamples=200)
    assert scaled == ratio(a, b, resamples=200)
    found, wide = interval(a, resamples=200), interval([factor * x for x in a], resamples=200)
    if found is not None:
        assert wide == speedup.Interval(factor * found.low, factor * found.high)


# 2,000 simulated studies measure a coverage of 95 % to 0.5 points, one standard error; the bands are 95 % less
# two of them, so that the plain percentile interval fails, which covers 92 to 93.5 % for these n.
@pytest.mark.parametrize(("count", "least", "most"), [(8, 0.94, 0.99), (12, 0.94, 0.99), (20, 0.94, 0.98)])
def test_the_interval_covers_the_median(count: int, least: float, most: float) -> None:
    covered = _coverage(count, lambda sample: interval(sample, resamples=1000), truth=math.exp(4))
    assert least <= covered <= most


@pytest.mark.parametrize("count", [2, 3, 5])
def test_below_six_runs_the_interval_is_the_range_and_covers_as_documented(count: int) -> None:
    promised = 1 - 2.0 ** (1 - count)
    covered = _coverage(count, lambda sample: interval(sample, resamples=1000), truth=math.exp(4))
    assert covered == pytest.approx(promised, abs=4 * math.sqrt(promised * (1 - promised) / SIMULATIONS))


@pytest.mark.parametrize(("count", "least"), [(5, 0.94), (8, 0.94), (20, 0.94)])
def test_the_interval_of_a_ratio_covers_it(count: int, least: float) -> None:
    random = np.random.default_rng(7)

    def found(sample):
        drawn = ratio(sample, np.exp(random.normal(3, 0.3, count)), resamples=1000)
        assert drawn.low is not None and drawn.high is not None
        return speedup.Interval(drawn.low, drawn.high)

    assert least <= _coverage(count, found, truth=math.exp(1)) <= 0.995


def _coverage(count: int, intervals, *, truth: float) -> float:
    """Return how often the interval of `count` log-normal times holds the true value."""
    random = np.random.default_rng(count)
    found = [intervals(np.exp(random.normal(4, 0.3, count))) for _ in range(SIMULATIONS)]
    return sum(one.low <= truth <= one.high for one in found) / SIMULATIONS

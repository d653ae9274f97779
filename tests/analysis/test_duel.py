"""The verdict of a duel, against SciPy and by simulation."""

import duels
import numpy as np
import pytest
from scipy import stats

from mlbench.analysis import duel

A = [10.0, 10.2, 9.9, 10.1, 10.0]


def signed_rank_level(logs: duel.Array) -> float:
    return float(np.asarray(stats.wilcoxon(logs, method="exact"))[1])


def test_the_interval_is_that_of_a_paired_t_test_of_the_logarithms() -> None:
    b = [9.0, 9.3, 8.8, 9.2, 8.9]
    verdict = duel.judge(A, b)
    test = stats.ttest_rel(np.log(b), np.log(A))
    interval = test.confidence_interval(1 - duel.NOMINAL_LEVEL)
    assert np.log([verdict.low, verdict.high]) == pytest.approx([interval.low, interval.high])
    assert verdict.ratio == pytest.approx(stats.gmean(b) / stats.gmean(A))
    assert verdict.p == pytest.approx(duel.overall(float(test.pvalue)))
    assert verdict.decision == "faster"
    assert duel.judge(b, A).decision == "slower"
    assert duel.judge(A, b, less_is_better=False).decision == "slower"


def test_from_twelve_pairs_on_the_test_is_that_of_signed_ranks() -> None:
    random = np.random.default_rng(5)
    for count in (12, 17, 33):
        logs = random.standard_t(2, count) / 50 + 0.01
        verdict = duel.judge([1.0] * count, np.exp(logs).tolist())
        assert verdict.p == pytest.approx(duel.overall(signed_rank_level(logs)))
        # The interval holds the shifts that the test does not reject.
        for end, outward in ((verdict.low, -1e-9), (verdict.high, 1e-9)):
            for shift, rejected in ((outward, True), (-outward, False)):
                level = signed_rank_level(logs - np.log(end) - shift)
                assert (level <= duel.NOMINAL_LEVEL) == rejected
        means = [(a + b) / 2 for i, a in enumerate(logs) for b in logs[i:]]
        assert np.log(verdict.ratio) == pytest.approx(np.median(means))


def test_one_slow_run_hides_no_difference() -> None:
    b = [1.02 * (1 + 0.004 * (-1) ** pair) for pair in range(28)]
    b[5] = 3.0
    verdict = duel.judge([1.0] * 28, b)
    assert verdict.decision == "slower" and verdict.high < 1.05


def test_equal_values_are_the_same_only_within_a_margin() -> None:
    for values in (A, A * 4):
        assert duel.judge(values, values).decision is None
        assert duel.judge(values, values).p == 1.0
        assert duel.judge(values, values, margin=0.001).decision == "same"


def test_a_difference_within_the_margin_is_the_same_and_one_across_it_undecided() -> None:
    b = [value * ratio for value, ratio in zip(A, (1.004, 1.006, 1.005, 1.0045, 1.0055), strict=True)]
    assert duel.judge(A, b, margin=0.02).decision == "same"
    assert duel.judge(A, b, margin=0.005).decision == "slower"
    assert duel.judge(A, b).largest == pytest.approx(duel.judge(A, b).high - 1)


def test_only_planned_looks_and_the_last_pair_decide() -> None:
    a, b = [10.0] * 9, [5.0] * 9
    assert 9 not in duel.LOOKS
    assert duel.judge(a, b).decision is None
    assert duel.judge(a, b, ended=True).decision == "faster"
    assert duel.judge(a[:8], b[:8]).decision == "faster"


@pytest.mark.parametrize("wrong", ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, float("inf")]))
def test_what_is_no_pair_of_times_is_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="4 pairs"), np.errstate(divide="ignore"):
        duel.judge([1.0] * len(wrong), wrong)


def test_the_share_of_equal_duels_grows_with_the_level() -> None:
    levels = np.geomspace(1e-9, 1, 200)
    shares = [duel.overall(level) for level in levels]
    assert shares == sorted(shares) and shares[0] == 1e-4 and shares[-1] == 1.0
    assert all(duel.overall(level) == pytest.approx(share) for share, level in duel.NOMINAL.items())


def test_duels_of_equal_commands_are_wrong_as_often_as_promised() -> None:
    """20,000 duels, whose share of 1 % has a standard error of 0.07 %."""
    for noise in duels.noises(np.random.default_rng(3), None).values():
        wrong, _ = duels.outcome(noise, 20_000)
        assert wrong < 0.012


@pytest.mark.parametrize("last", (9, 11, 13, 63, 74, 79))
def test_the_last_pair_of_a_duel_that_ran_out_of_time_makes_no_more_mistakes(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(6).standard_normal
    monkeypatch.setattr(duel, "LOOKS", (*(look for look in duel.LOOKS if look < last), last))
    wrong, _ = duels.outcome(noise, 20_000)
    assert wrong < 0.012


def test_the_simulation_judges_as_the_product_does() -> None:
    logs = np.random.default_rng(4).standard_normal((50, duel.MOST_PAIRS)) / 100 + 0.01
    for row, levels in zip(logs, duels.nominal(logs), strict=True):
        for look, level in zip(duel.LOOKS, levels, strict=True):
            verdict = duel.judge([1.0] * look, np.exp(row[:look]).tolist())
            assert verdict.p == pytest.approx(duel.overall(float(level)))
            assert (verdict.decision is not None) == (level <= duel.NOMINAL_LEVEL)

"""What may be said of two selections of runs: faster, slower, or nothing."""

import math
import re
import zlib
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from records import record
from scipy import stats
from scipy.stats import binom
from scripted import experiment
from syrupy.assertion import SnapshotAssertion

from mlbench.analysis import compare as comparison
from mlbench.analysis.compare import compare
from mlbench.analysis.points import points
from mlbench.config import identity
from mlbench.config.errors import UserError
from mlbench.record.record import Record
from mlbench.terminal import comparison as shown

verdicts: Any = import_module("verdicts")
FAST = [10.0, 10.2, 9.9, 10.1, 10.3]  # s
SLOW = [12.0, 12.3, 11.9, 12.1, 12.2]


def runs(
    times: Sequence[float | None], *overrides: str, seeds: Sequence[int] | None = None, **changes: Any
) -> list[Record]:
    """Return one run a time in seconds, None for one that missed its goal."""
    records = []
    key = identity.key(experiment(*overrides))
    for number, seconds in enumerate(times):
        own = {
            "run_id": f"run-{'-'.join(overrides)}-{number}",
            "key": key,
            "seed": seeds[number] if seeds else 100 * zlib.crc32(key.encode()) + number,
            "time_to_accuracy": seconds,
            "status": "goal_not_reached" if seconds is None else "goal_reached",
            "samples_per_s": 1000.0 / (seconds or 20.0),
        }
        records.append(record(*overrides, **own | changes))
    return records


def only(result: comparison.Comparison) -> comparison.PointPair:
    (pair,) = result.pairs
    return pair


def measured(pair: comparison.PointPair, name: str) -> comparison.QuantityComparison:
    return next(measure for measure in pair.measures if measure.name == name)


def test_a_ratio_is_bs_median_over_as() -> None:
    pair = only(
        compare(runs(FAST, "workers=2"), runs(SLOW, "workers=2", "sync.bucket_cap_mb=5", "division=open"))
    )
    time = measured(pair, "time_to_accuracy")
    assert (time.a, time.b) == (10.1, 12.1)
    assert time.ratio and time.ratio.value == pytest.approx(12.1 / 10.1)
    assert time.ratio.low and time.ratio.high and 1.1 < time.ratio.low < 12.1 / 10.1 < time.ratio.high < 1.3
    assert pair.verdict == "slower" and not time.paired
    rate = measured(pair, "samples_per_s").ratio
    assert rate and rate.value == pytest.approx(10.1 / 12.1)


@pytest.mark.parametrize(
    ("a", "b", "sentence"),
    [
        ([10.0], [20.0], "one run per side: a difference needs at least 3"),
        ([10.0], SLOW, "one run in A"),
        (FAST, [20.0], "one run in B"),
    ],
)
def test_one_run_shows_nothing(a: list[float], b: list[float], sentence: str) -> None:
    pair = only(compare(runs(a, "workers=2"), runs(b, "workers=1"), limit=0.05))
    assert pair.verdict == "no verdict" and sentence in pair.why
    ratio = measured(pair, "time_to_accuracy").ratio
    assert ratio and ratio.value and ratio.low is None and ratio.high is None
    assert pair.regression is None, "no verdict and no gate"


def test_equal_seeds_make_pairs_that_show_more() -> None:
    # The seed decides nearly all of the time: B takes 2 % more with every seed.
    a = [10.0, 20.0, 40.0, 80.0, 15.0, 30.0]
    b = [1.02 * seconds + 0.001 * number for number, seconds in enumerate(a)]
    seeds = [1, 2, 3, 4, 5, 6]
    pair = only(compare(runs(a, "workers=2", seeds=seeds), runs(b, "workers=1", seeds=seeds)))
    apart = only(compare(runs(a, "workers=2", seeds=seeds), runs(b, "workers=1", seeds=[9, *seeds[1:]])))
    assert measured(pair, "time_to_accuracy").paired and pair.verdict == "slower"
    assert not measured(apart, "time_to_accuracy").paired and apart.verdict == "no difference shown"


def test_a_paired_interval_is_that_of_all_resamples() -> None:
    """With three pairs there are 27 resamples, so the interval's ends are known exactly."""
    a, b = [10.0, 12.0, 11.0], [11.0, 15.0, 11.5]
    seeds = [1, 2, 3]
    ratio = measured(
        only(compare(runs(a, "workers=2", seeds=seeds), runs(b, "workers=1", seeds=seeds))),
        "time_to_accuracy",
    ).ratio
    every = sorted(
        sorted(b[i] for i in drawn)[1] / sorted(a[i] for i in drawn)[1]
        for drawn in np.ndindex(3, 3, 3)
    )  # fmt: skip
    # Each value of the median ratio has a probability above 2.5 %, so the ends are the extremes.
    assert ratio and (ratio.low, ratio.high) == pytest.approx((every[0], every[-1]))


def test_a_missed_goal_counts_as_infinite_time() -> None:
    pair = only(compare(runs(FAST, "workers=2"), runs([None] * 5, "workers=1"), limit=0.05))
    ratio = measured(pair, "time_to_accuracy").ratio
    assert ratio and ratio.value == ratio.low == ratio.high == math.inf
    assert pair.verdict == "slower" and pair.regression
    assert "5 of 5 runs missed" in " ".join(pair.notes)
    lucky = only(compare(runs(FAST, "workers=2"), runs([*SLOW[:4], None], "workers=1")))
    time = measured(lucky, "time_to_accuracy")
    assert time.b == 12.1 and lucky.verdict == "slower"


@pytest.mark.parametrize(("limit", "exceeded"), [(0.05, True), (0.10, True), (0.19, False), (0.30, False)])
def test_slower_than_a_limit_needs_the_whole_interval_above_it(limit: float, exceeded: bool) -> None:
    pair = only(compare(runs(FAST, "workers=2"), runs(SLOW, "workers=1"), limit=limit))
    ratio = measured(pair, "time_to_accuracy").ratio
    assert ratio and ratio.low and (ratio.low > 1 + limit) is exceeded
    assert pair.regression is exceeded
    faster = only(compare(runs(SLOW, "workers=2"), runs(FAST, "workers=1"), limit=limit))
    assert faster.regression is False


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("paired", [False, True])
def test_where_there_is_no_difference_a_verdict_is_rare(count: int, paired: bool) -> None:
    """The promise of the level: at most 5 % of equal samples get a verdict (2.5 % each way)."""
    random = np.random.default_rng(7)
    repeats, wrong = 400, 0
    for _ in range(repeats):
        a, b = np.exp(random.normal(3.0, 0.05, size=(2, count)))
        wrong += comparison._significantly_above(list(a), list(b), 1.0, paired=paired)
    # 2.5 % of 400 is 10; more than 21 would happen once in a thousand times (binomial).
    assert wrong <= 21


def test_each_verdict_is_tested_at_two_and_a_half_percent() -> None:
    """One-sided p is 0.027 for a tenth more, and the interval lies above 1: not enough for 5 % both ways."""
    a = [100.0, 104.0, 109.0]
    tenth, more = ([value * factor for value in a] for factor in (1.10, 1.11))
    assert not comparison._significantly_above(a, tenth, 1.0, paired=False)
    assert comparison._significantly_above(a, more, 1.0, paired=False)


@pytest.mark.parametrize(("curves", "count"), [(8, 3)])
def test_a_page_of_equal_curves_calls_none_slower_in_95_of_100(curves: int, count: int) -> None:
    pages, alone, wrong = 200, 0, 0
    for seed in range(pages):
        samples = np.exp(np.random.default_rng(seed).normal(0, 0.2, size=(curves, count)))
        best = int(np.argmin(np.median(samples, axis=1)))
        lows = [comparison.bootstrap.ratio(sample, samples[best], resamples=1000).low for sample in samples]
        alone += any(low is not None and low > 1 for i, low in enumerate(lows) if i != best)
        wrong += bool(comparison.slower_of_all(samples.tolist()))
    assert wrong <= binom.ppf(0.999, pages, 0.05)
    assert curves < 8 or alone > 0.3 * pages  # what the intervals alone would call slower


def test_holm_and_welch_are_the_libraries() -> None:
    assert comparison.holm([0.04, 0.01, 0.03]) == [False, True, False]
    assert comparison.holm([0.02, 0.01, 0.04]) == [True, True, True]
    a, b = np.random.default_rng(1).lognormal(size=(2, 5))
    by_library = stats.ttest_ind(np.log(b), np.log(a), equal_var=False, alternative="greater")[1]
    assert comparison._p_above([b.tolist(), a.tolist()], [(0, 1)]) == pytest.approx([by_library])
    same, lost = [2.0, 2.0, 2.0], [math.inf] * 3
    for equal in (same, lost):  # they take no place among those that Holm finds to differ
        assert comparison._p_above([equal, equal], [(0, 1)]) == [0.5]
    missed = [1.0, 2.0, math.inf]
    assert comparison._p_above([missed, [0.1, 0.2, 0.3]], [(0, 1), (1, 0)]) == pytest.approx([0.05, 0.95])


def test_each_of_many_pairs_needs_more_than_alone() -> None:
    """Two seeds apart by little are shown alone, and not as one of six pairs."""
    random = np.random.default_rng(3)
    fast, slow = [[10.0, 10.4, 9.7], [11.2, 11.5, 10.9]]
    alone = compare(runs(fast, "workers=1"), runs(slow, "workers=2"))
    assert [pair.verdict for pair in alone.pairs] == ["slower"]
    many_a, many_b = [], []
    for i in range(6):
        word = f"task.lr={0.1 + i}"
        equal = [10 * math.exp(0.2 * x) for x in random.standard_normal(6)]
        many_a += runs(fast if i == 0 else equal[:3], "workers=1", "division=open", word)
        many_b += runs(slow if i == 0 else equal[3:], "workers=2", "division=open", word)
    verdicts = {pair.why: pair.verdict for pair in compare(many_a, many_b, limit=0.0).pairs}
    assert "slower" not in verdicts.values() and "faster" not in verdicts.values()
    why = next(why for why in verdicts if why.startswith("alone the test would show"))
    assert verdicts[why] == "inconclusive" and "one of 6" in why
    gate = compare(many_a, many_b, limit=0.0).pairs
    assert not any(pair.regression for pair in gate)


@pytest.mark.parametrize(
    ("word", "field"),
    [("task=logreg", "task.name"), ("goal=light", "goal"), ("scale=official", "scale")],
)
def test_apples_and_oranges_are_refused(word: str, field: str) -> None:
    with pytest.raises(UserError, match=f"cannot be compared: {field} is"):
        compare(runs(FAST, "workers=2"), runs(SLOW, "workers=2", "division=open", word))


def test_every_point_is_compared_with_the_one_that_differs_in_what_the_sides_differ_in() -> None:
    a = runs(FAST, "workers=1") + runs(SLOW, "workers=1", "task=logreg")
    b = (
        runs(SLOW, "workers=2")
        + runs(FAST, "workers=2", "task=logreg")
        + runs(FAST, "workers=2", "task=gnmt")
    )
    result = compare(a, b)
    verdicts = {pair.a.task: pair.verdict for pair in result.pairs}
    assert verdicts == {"resnet20": "slower", "logreg": "faster"}
    assert all(pair.a.task == pair.b.task for pair in result.pairs)
    assert [point.task for point in result.only_b] == ["gnmt"] and not result.only_a


def test_two_studies_are_compared_point_by_point() -> None:
    before = runs(FAST, "workers=1", mlbench="0.1.0") + runs(SLOW, "workers=2", mlbench="0.1.0")
    after = runs(FAST, "workers=1", mlbench="0.2.0") + runs(FAST, "workers=2", mlbench="0.2.0")
    after = [run.model_copy(update={"run_id": f"new-{run.run_id}", "key": f"new{run.key}"}) for run in after]
    result = compare(before, after)
    assert [(pair.a.workers, pair.b.workers, pair.verdict) for pair in result.pairs] == [
        (1, 1, "no difference shown"), (2, 2, "faster"),
    ]  # fmt: skip
    assert all([field for field, _, _ in pair.differs] == ["mlbench"] for pair in result.pairs)


def test_other_mistakes_are_sentences(as_stored: Any) -> None:
    a = runs(FAST, "workers=1")
    with pytest.raises(UserError, match="^A "):
        compare([], a)
    with pytest.raises(UserError, match="^B "):
        compare(a, runs(FAST, "workers=2", status="interrupted"))
    with pytest.raises(UserError, check=as_stored):
        compare(a, a)


@pytest.mark.parametrize("status", ["goal_not_reached", "diverged"])
def test_a_goal_that_no_run_reaches_any_more_fails_the_gate_though_so_few_show_nothing(
    status: str, snapshot: SnapshotAssertion
) -> None:
    """Of three runs a side the rank test gives 1/20 at least, so always against never passed the gate."""
    a, b = runs(FAST[:3], "workers=2"), runs([None] * 3, "workers=1", status=status)
    pair = only(compare(a, b, limit=0.05))
    assert pair.goal_regression == snapshot
    assert pair.verdict == "inconclusive" and str(pair.goal_regression) in pair.why
    assert pair.regression is True
    assert only(compare(a, b)).regression is None
    assert only(compare(b, a, limit=0.05)).regression is False


@pytest.mark.parametrize(
    ("a", "b", "lost"),
    [
        ([10.0, 10.1, None], [None, None, None], True),
        ([10.0, 10.1, 10.2], [10.0, None, None], True),
        ([10.0, 10.1, 10.2], [10.0, 10.1, None], False),
        ([10.0, None, None], [None, None, None], False),
        ([10.0, 10.1], [10.0, None], True),
        ([10.0, None], [None, None], False),
        ([10.0], [None], True),
        ([10.0], [11.0], False),
    ],
)
def test_a_goal_is_lost_when_the_median_run_misses_it(
    a: list[float | None], b: list[float | None], lost: bool
) -> None:
    pair = only(compare(runs(a, "workers=2"), runs(b, "workers=1"), limit=0.05))
    assert (pair.goal_regression is not None) is lost
    assert bool(pair.regression) is lost


def test_a_run_without_a_goal_that_fails_has_no_rate_and_is_not_called_infinite(
    snapshot: SnapshotAssertion,
) -> None:
    """Its samples/s until then entered B's median, beside a note that it counted as infinite."""
    a = runs(FAST[:3], "workers=2", "goal=none", status="completed", time_to_accuracy=None)
    b = runs([10.0, 12.0, 1.0], "workers=1", "goal=none", status="completed", time_to_accuracy=None)
    b[-1] = b[-1].model_copy(update={"status": "failed"})
    pair = only(compare(a, b))
    (point,) = points(b)
    assert point.samples_per_s and measured(pair, "samples_per_s").b == point.samples_per_s.value
    assert pair.notes == snapshot


@pytest.mark.parametrize(("count", "documented"), [(1, "4.8 %"), (3, "0.7 %"), (5, "0.1 %")])
def test_how_often_chance_alone_loses_a_goal_is_as_documented(count: int, documented: str) -> None:
    """All outcomes of runs of which 5 % miss the goal, each with its probability."""
    assert documented in (ROOT / "docs" / "results-command.md").read_text()
    chance = 0.0
    for missed_a, missed_b in np.ndindex(count + 1, count + 1):
        a = runs([*FAST[: count - missed_a], *[None] * missed_a], "workers=2")
        b = runs([*FAST[: count - missed_b], *[None] * missed_b], "workers=1")
        weight = math.prod(float(binom.pmf(missed, count, 0.05)) for missed in (missed_a, missed_b))
        chance += weight * bool(only(compare(a, b, limit=0.05)).regression)
    assert f"{100 * chance:.1f} %" == documented


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("task.validation=split",), "task.validation is test in A and split in B"),
        (
            ("task.train_file=a9a.txt", "task.test_file=a9a.t"),
            "task.train_file is None in A and a9a.txt in B",
        ),
    ],
)
def test_other_data_is_another_task(overrides: tuple[str, ...], message: str) -> None:
    """The name of the data set and the goal stay as they are; the rows do not."""
    ours = ("task=logreg", "workers=2")
    with pytest.raises(UserError, match=message):
        compare(runs(FAST, *ours), runs(FAST, *ours, "division=open", *overrides))


def test_a_data_set_that_was_prepared_otherwise_is_another_one() -> None:
    a = runs(FAST, "workers=1", data_hash="a" * 16)
    with pytest.raises(UserError, match="aaaa.* and bbbb"):
        compare(a, runs(FAST, "workers=2", data_hash="b" * 16))
    assert compare(a, runs(FAST, "workers=2")).pairs, "what a run could not tell is no difference"


def test_an_interval_that_excludes_1_with_too_few_runs_is_inconclusive_and_not_no_difference() -> None:
    pair = only(
        compare(runs([10.0, 11.0], "workers=2"), runs([12.0, 14.0], "workers=1", seeds=[50, 51, 52, 53, 54]))
    )
    time = measured(pair, "time_to_accuracy").ratio
    assert time and time.low and time.low > 1
    assert pair.verdict == "inconclusive" and "2 runs per side" in pair.why


def test_equal_medians_are_no_difference_whatever_a_t_test_says() -> None:
    """Four runs of each side took 1 s, three less or more: the means of the logarithms differ, p < 0.025."""
    a = runs([1.0] * 4 + [0.5] * 3, "workers=2")
    b = runs([1.0] * 4 + [2.0] * 3, "workers=2", "sync.bucket_cap_mb=5", "division=open")
    test: Any = stats.ttest_ind(np.log([1.0] * 4 + [2.0] * 3), np.log([1.0] * 4 + [0.5] * 3))
    assert test.pvalue < 0.025
    assert only(compare(a, b)).verdict == "no difference shown"


BUSY = "other processes used {} of the 2 CPUs of vm while it trained"


def calibrated(rates: Sequence[float | None], **changes: Any) -> list[dict[str, Any]]:
    """Return a run's nodes, one a rate in GFLOP/s; None: not calibrated."""
    node = {"hostname": "vm", "usable_cpus": 2} | changes
    row = {"threads": 2.0, "cpu_copy_bytes_per_s": 25e9}
    return [
        node | {"calibration": {} if rate is None else row | {"cpu_gemm_flops_per_s": 1e9 * rate}}
        for rate in rates
    ]


def test_machines_of_two_speeds_have_no_verdict_and_pass_no_gate(snapshot: SnapshotAssertion) -> None:
    """Five runs at 200 GFLOP/s and five at 150, with times in that proportion: nothing was changed."""
    slow = [seconds * 200 / 150 for seconds in FAST]
    a = runs(FAST, "workers=2", nodes=calibrated([200]))
    b = runs(slow, "workers=1", nodes=calibrated([150]))
    pair = only(compare(a, b, limit=0.05))
    assert (pair.verdict, pair.regression) == ("no verdict", None)
    text = shown.text(compare(a, b), limit=None)
    lines = [line for line in text.splitlines() if line.startswith(("verdict", "calibration"))]
    assert lines == snapshot
    lost = runs([None] * 5, "workers=1", nodes=calibrated([150]))
    assert only(compare(a, lost, limit=0.05)).regression, "a lost goal needs no clock"
    few = only(compare(a[:3], lost[:3], limit=0.05))
    assert few.verdict == "inconclusive" and "missed the goal" in few.why and few.regression


@pytest.mark.parametrize(
    ("rate", "share", "verdict"),
    [
        (191, 0.03, "slower"),  # less than 5 % apart: the machines count as equal
        (190, 0.03, "no verdict"),
        (211, -0.03, "no verdict"),
        (150, 0.35, "no verdict"),  # 4/3, and 5 % more for the error of a calibration
        (150, 0.45, "slower"),
        (150, -0.35, "faster"),
        (30, 5.4, "no verdict"),
    ],
)
def test_times_must_differ_more_than_machines_that_differ_by_5_percent(
    rate: float, share: float, verdict: str
) -> None:
    times = [10.0, 10.01, 9.99, 10.02, 9.98]  # s
    a = runs(times, "workers=2", nodes=calibrated([200]))
    b = runs([(1 + share) * time for time in times], "workers=1", nodes=calibrated([rate]))
    pair = only(compare(a, b, limit=0.02))
    assert pair.verdict == verdict
    assert pair.regression is (None if verdict == "no verdict" else share > 0)


def test_only_times_that_had_to_be_further_apart_than_the_machines_are_said_to_be() -> None:
    """Of other hardware the speed is a part of the question: 4 % slower there is slower."""
    a = runs([10.0, 10.01, 9.99, 10.02, 9.98], "workers=2", nodes=calibrated([200]))
    for hardware, share, further in (("local", 0.45, True), ("gcp_n1_standard_4", 0.04, False)):
        words = ("workers=2", f"hardware={hardware}") if hardware != "local" else ("workers=1",)
        times = [(1 + share) * run.time_to_accuracy for run in a if run.time_to_accuracy]
        compared = compare(a, runs(times, *words, nodes=calibrated([150])))
        assert only(compared).verdict == "slower" and only(compared).calibration.difference
        assert ("further apart" in shown.text(compared, limit=None)) is further


@pytest.mark.parametrize(
    ("nodes", "unknown"),
    [
        (calibrated([None]), "not measured in B"),
        ([{**node, "calibration": node["calibration"] | {"threads": 1.0}} for node in calibrated([100])],
         "measured with 2 CPUs in A and 1 in B"),
    ],
)  # fmt: skip
def test_a_speed_that_was_not_measured_alike_is_said_and_not_guessed(
    nodes: list[dict[str, Any]], unknown: str
) -> None:
    compared = compare(runs(FAST, "workers=2", nodes=calibrated([200])), runs(SLOW, "workers=1", nodes=nodes))
    assert only(compared).verdict == "slower" and only(compared).calibration.unknown == unknown
    line = f"calibration: {unknown}, so the machines' speeds cannot be compared"
    assert line in shown.text(compared, limit=None).splitlines()


def test_more_nodes_are_no_slower_machine() -> None:
    """The slowest of eight nodes is 6 % below the single one, the middle one is not."""
    eight = calibrated([188, 196, 198, 200, 200, 202, 204, 212])
    b = runs(SLOW, "workers=1", nodes=eight)
    assert only(compare(runs(FAST, "workers=2", nodes=calibrated([200])), b)).verdict == "slower"


def test_of_a_gpu_s_run_the_gpu_s_speed_counts() -> None:
    def nodes(rate: float) -> list[dict[str, Any]]:
        (node,) = calibrated([200])
        return [{**node, "calibration": node["calibration"] | {"cuda_gemm_flops_per_s": 1e12 * rate}}]

    overrides = ("backend=nccl", "hardware=gcp_n1_t4")
    pair = only(
        compare(
            runs(FAST, "workers=2", *overrides, nodes=nodes(8)),
            runs(SLOW, "workers=1", *overrides, nodes=nodes(6)),
        )
    )
    assert "8 TFLOP/s and 6 TFLOP/s" in pair.why


@pytest.mark.parametrize(
    ("sides", "order"),
    [
        ("ABABAB", ("A", 6, True)),
        ("ABBAAB", ("A", 4, True)),
        ("BBBAAA", ("B", 2, False)),
        ("AABBBA", ("A", 3, False)),
        ("AAABBBBBBB", ("A", 2, False)),
    ],
)
def test_it_says_whether_the_sides_took_turns(sides: str, order: tuple[str, int, bool]) -> None:
    starts = [f"2026-11-21T03:{minute:02}:00+00:00" for minute in range(len(sides))]
    some: dict[str, list[Record]] = {"A": [], "B": []}
    for number, (side, start) in enumerate(zip(sides, starts, strict=True)):
        word = f"workers={'AB'.index(side) + 1}"
        some[side] += runs([10 + 0.01 * number], word, started_at=start, run_id=f"{number}", seed=number)
    compared = compare(some["A"], some["B"])
    assert only(compared).order == comparison.Order(*order)
    (line,) = [line for line in shown.text(compared, limit=None).splitlines() if line.startswith("order")]
    if order[2]:
        assert f"interleaved ({order[1] - 1} changes of side in {len(sides)} runs)" in line
    else:
        how = (
            {"A": "A before B", "B": "B before A"}[order[0]]
            if order[1] == 2
            else "2 changes of side in 6 runs"
        )
        assert line.startswith(f"order: not interleaved, {how}")


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("count", "spread"), [(3, 0.1), (10, 0.03)])
def test_the_smallest_difference_is_found_in_four_of_five_comparisons(
    count: int, spread: float, paired: bool
) -> None:
    """With the spread that the samples have, and by the verdict's own function."""
    standard = np.array([-1.0, 1.0] * (count // 2) + [0.0] * (count % 2))
    standard *= spread / standard.std(ddof=1)
    a, b = np.exp(standard), np.exp(np.roll(standard, 1) if paired else standard)
    share = comparison.smallest_difference(list(a), list(b), paired=paired)
    assert share is not None
    cov = np.cov(np.log(a), np.log(b)) if paired else np.eye(2) * spread**2
    drawn = np.exp(np.random.default_rng(5).multivariate_normal([0, 0], cov, size=(200, count)))
    positives = sum(
        comparison._significantly_above(
            list(pairs[:, 0]), list((1 + share) * pairs[:, 1]), 1.0, paired=paired
        )
        for pairs in drawn
    )
    # 200 and 400 simulated comparisons: 80 % with a standard error of 3.5 points together.
    assert 0.69 <= positives / 200 <= 0.91


@pytest.mark.parametrize(("page", "table"), [("results-command", "power"), ("statistics", "errors")])
def test_the_documentation_has_the_tables_of_the_script(page: str, table: str) -> None:
    """One column (n = 3) is simulated again with few pairs, four standard errors apart at most."""
    pairs = 60
    header, _, *rows = getattr(verdicts, table)((3,), pairs=pairs)
    stated = [cells_of(line) for line in (ROOT / "docs" / f"{page}.md").read_text().splitlines()]
    titles = cells_of(header)
    assert titles in [line[: len(titles)] for line in stated]
    for simulated in map(cells_of, rows):
        (expected,) = [line for line in stated if line[:1] == simulated[:1] and len(line) >= len(titles)]
        for title, value, other in zip(titles[1:], simulated[1:], expected[1:], strict=False):
            shares = zip(*(map(float, re.findall(r"[\d.]+", cell)) for cell in (value, other)), strict=True)
            for here, there in shares:
                error = 100 * math.sqrt(max(0.02, there / 100 * (1 - there / 100)) / pairs)
                assert abs(here - there) <= (0.3 * there if title.startswith("80 %") else 4 * error), expected


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def disturbed(times: Sequence[float | None], word: str, first: int = 0, **changes: Any) -> list[Record]:
    """Return runs of which each has a sentence of its own about what the machine did beside it."""
    return [
        run.model_copy(
            update={"disturbances": [(sentence := BUSY.format(f"1.{first + n}"))], "caveats": [sentence]}
            if run.time_to_accuracy
            else {}
        )
        for n, run in enumerate(runs(times, word, **changes))
    ]


def test_runs_of_which_all_were_disturbed_have_no_verdict(snapshot: SnapshotAssertion) -> None:
    a, b = disturbed(FAST[:3], "workers=1"), disturbed(SLOW[:3], "workers=2", first=3)
    result = compare(a, b, limit=0.05)
    pair = only(result)
    assert (pair.verdict, pair.regression) == ("no verdict", None)
    verdict, gate, *_ = shown.text(result, limit=0.05).splitlines()
    assert (verdict, gate) == snapshot
    both = compare(a, b, limit=0.05, with_disturbed=True)
    assert only(both).regression is True
    verdict = shown.text(both, limit=0.05).splitlines()[0]
    assert verdict == snapshot


def test_one_side_without_a_quiet_run_is_enough(snapshot: SnapshotAssertion) -> None:
    pair = only(compare(runs(FAST, "workers=1"), disturbed(SLOW, "workers=2")))
    assert pair.why == snapshot
    mixed = [*runs([12.0, 12.1, 12.2], "workers=2"), *disturbed([13.0], "workers=2", seeds=[99])]
    mixed[-1] = mixed[-1].model_copy(update={"run_id": "disturbed"})
    assert only(compare(runs(FAST, "workers=1"), mixed)).verdict == "slower"


def test_a_run_that_reached_its_goal_beside_other_work_did_reach_it() -> None:
    """Two of B's three runs are left out for their times; that leaves one, which missed, and no lost goal."""
    b = disturbed([12.0, 12.1, None], "workers=2")
    pair = only(compare(runs(FAST[:3], "workers=1"), b, limit=0.05))
    assert (pair.goal_regression, pair.regression) == (None, None)
    assert pair.why.startswith("all 2 runs of B ")

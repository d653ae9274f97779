"""The statistics against independent computations, and what their intervals promise on made-up samples."""

import math
import statistics
import tracemalloc
from typing import Any

import numpy as np
import pytest
import studies
from drawings import notes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from syrupy.assertion import SnapshotAssertion

from mlbench.analysis import bootstrap
from mlbench.analysis.bootstrap import Interval, Ratio, interval, median, olympic_mean, ratio
from mlbench.analysis.points import COMPUTE, MedianEstimate, points
from mlbench.analysis.speedup import speedups
from mlbench.analysis.tradeoff import optimum
from mlbench.config.goal import Goal
from mlbench.record.record import RankStats, Record
from mlbench.report.answers import answer
from mlbench.report.charts import charts
from mlbench.report.grouping import groups

SIMULATIONS = 2000  # made-up studies a coverage is measured with
times = st.floats(0.1, 1e6)  # s
samples = st.lists(times, min_size=1, max_size=9)


@given(samples)
def test_the_median_is_python_s(values: list[float]) -> None:
    assert median(values) == statistics.median(values)


def test_the_olympic_mean_forgives_one_missed_run_and_no_second() -> None:
    assert olympic_mean([3.0, 1.0, math.inf, 2.0]) == 2.5
    assert olympic_mean([3.0, 1.0, math.inf, math.inf]) == math.inf
    assert olympic_mean([1.0, 2.0]) is None


def test_missed_runs_count_as_infinite_in_the_median() -> None:
    assert median([5.0, math.inf, 4.0]) == 5.0
    assert median([5.0, math.inf]) == math.inf
    assert median([math.inf, math.inf]) == math.inf
    assert interval([5.0, 4.0, 6.0, math.inf, 5.5]) == Interval(4.0, math.inf)


def test_one_run_has_no_interval() -> None:
    assert interval([5.0]) is None
    assert ratio([6.0], [3.0]) == Ratio(2.0, None, None)
    assert ratio([6.0, 7.0, 8.0], [3.5]) == Ratio(2.0, None, None)


@pytest.mark.parametrize("values", [[], [1.0, math.nan]])
def test_what_is_no_sample_is_refused(values: list[float], as_stored: Any) -> None:
    with pytest.raises(ValueError, check=as_stored):
        interval(values)


def test_the_interval_is_scipy_s_percentile_bootstrap_at_the_expanded_level() -> None:
    values = np.random.default_rng(3).normal(100, 10, 12)
    tail = float(stats.norm.cdf(math.sqrt(12 / 11) * stats.t.ppf(0.025, 11)))
    theirs = stats.bootstrap(
        (values,),
        np.median,
        confidence_level=1 - 2 * tail,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(5),
    ).confidence_interval
    result = interval(values)
    assert result is not None
    assert (result.low, result.high) == pytest.approx(tuple(theirs), rel=0.01)


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
    result = ratio(above, below)
    assert result.value == pytest.approx(np.median(above) / np.median(below))
    assert (result.low, result.high) == pytest.approx(tuple(theirs), rel=0.02)


def test_a_ratio_of_missed_runs_tells_nothing_or_zero_or_infinity() -> None:
    missed = [math.inf] * 3
    assert ratio(missed, missed) == Ratio(None, 0.0, math.inf)
    assert ratio([1.0, 2.0, 3.0], missed) == Ratio(0.0, 0.0, 0.0)
    assert ratio(missed, [1.0, 2.0, 3.0]) == Ratio(math.inf, math.inf, math.inf)


@pytest.mark.slow
def test_memory_does_not_grow_with_resamples_times_runs() -> None:
    values = np.random.default_rng(1).normal(100, 10, size=20_000)
    tracemalloc.start()
    interval(values, resamples=2000)
    ratio(values, values[::-1], resamples=2000, paired=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6  # all at once: 2,000 x 20,000 numbers of 8 bytes, 320 MB


# 2,000 simulated studies measure a coverage of 95 % to 0.5 points, one standard error; the bands are 95 %
# less two of them, so that the plain percentile interval fails, which covers 92 to 93.5 % for these n.
@pytest.mark.parametrize(("count", "least", "most"), [(8, 0.94, 0.99)])
def test_the_interval_covers_the_median(count: int, least: float, most: float) -> None:
    covered = _coverage(count, lambda sample: interval(sample, resamples=1000), truth=math.exp(4))
    assert least <= covered <= most


@pytest.mark.parametrize("count", [3, 5])
def test_below_six_runs_the_interval_is_the_range_and_covers_as_documented(count: int) -> None:
    promised = 1 - 2.0 ** (1 - count)
    covered = _coverage(count, lambda sample: interval(sample, resamples=1000), truth=math.exp(4))
    assert covered == pytest.approx(promised, abs=4 * math.sqrt(promised * (1 - promised) / SIMULATIONS))


@pytest.mark.parametrize(("count", "least"), [(5, 0.94)])
def test_the_interval_of_a_ratio_covers_it(count: int, least: float) -> None:
    random = np.random.default_rng(7)

    def ratio_interval(sample):
        drawn = ratio(sample, np.exp(random.normal(3, 0.3, count)), resamples=1000)
        assert drawn.low is not None and drawn.high is not None
        return Interval(drawn.low, drawn.high)

    assert least <= _coverage(count, ratio_interval, truth=math.exp(1)) <= 0.995


def _coverage(count: int, intervals, *, truth: float) -> float:
    """Return how often the interval of `count` log-normal times holds the true value."""
    random = np.random.default_rng(count)
    results = [intervals(np.exp(random.normal(4, 0.3, count))) for _ in range(SIMULATIONS)]
    return sum(result.low <= truth <= result.high for result in results) / SIMULATIONS


T4 = "hardware=gcp_n1_t4"


def test_aggregates_equal_plain_python_on_the_raw_records() -> None:
    records = [_of_unlike_ranks(run) for run in studies.study(T4)]
    for point, workers in zip(points(records), (1, 2, 4), strict=True):
        raw = [record.model_dump() for record in records if record.workers == workers]
        middle = {
            "time_to_accuracy": [r["time_to_accuracy"] for r in raw],
            "epochs": [r["epochs"] for r in raw],
            "seconds_per_epoch": [r["time_to_accuracy"] / r["epochs"] for r in raw],
            "exposed": [sum(r["phases"][p]["mean"] for p in ("wait", "transfer")) / _batches(r) for r in raw],
            "overlapped": [r["overlapped_communication"]["mean"] / _batches(r) for r in raw],
            "compute": [sum(r["phases"][p]["mean"] for p in COMPUTE) for r in raw],
            "outside_per_epoch": [(r["time_to_accuracy"] - _batches(r)) / r["epochs"] for r in raw],
            "usd": [r["cost"]["goal_usd"] for r in raw],
            "usd_spot": [r["cost"]["goal_usd_spot"] for r in raw],
        }
        for name, values in middle.items():
            quantity = getattr(point, name)
            assert quantity.value == pytest.approx(statistics.median(values)), name
            # Five runs: the interval is their range.
            assert (quantity.low, quantity.high) == pytest.approx((min(values), max(values))), name
            assert quantity.n == 5
        assert point.olympic == pytest.approx(statistics.fmean(sorted(middle["time_to_accuracy"])[1:-1]))
        assert point.usd_spent == pytest.approx(sum(r["cost"]["wall_usd"] for r in raw))
        for phase, seconds in point.phases.items():
            assert seconds == pytest.approx(
                statistics.fmean(r["phases"][phase]["mean"] / r["epochs"] for r in raw)
            )


def _of_unlike_ranks(run: Record) -> Record:
    """Return the run with ranks that are not the mean rank; those of studies.run are."""

    def unlike(spread: RankStats) -> RankStats:
        return RankStats(min=spread.mean / 2, mean=spread.mean, max=2 * spread.mean)

    assert run.overlapped_communication is not None
    phases = {name: unlike(spread) for name, spread in run.phases.items()}
    overlapped = unlike(run.overlapped_communication)
    return run.model_copy(update={"phases": phases, "overlapped_communication": overlapped})


def _batches(raw: dict[str, Any]) -> float:
    return sum(spread["mean"] for spread in raw["phases"].values())


def test_speed_up_efficiency_and_price_index_equal_plain_python() -> None:
    records = studies.study(T4)
    times = {k: [r.time_to_accuracy or 0 for r in records if r.workers == k] for k in (1, 2, 4)}
    base = statistics.median(times[1])
    for result, k in zip(speedups(points(records)), (1, 2, 4), strict=True):
        expected = base / statistics.median(times[k])
        assert (
            result.why is None
            and result.total
            and result.compute
            and result.efficiency
            and result.price_index
        )
        assert result.total.value == pytest.approx(expected)
        assert result.efficiency.value == pytest.approx(expected / k)
        assert result.price_index.value == pytest.approx(k / expected**2)
        assert result.point.usd and result.base and result.base.usd
        price_increase = result.point.usd.value / result.base.usd.value
        assert result.price_index.value == pytest.approx(price_increase / expected)
        if k > 1:
            theirs = stats.bootstrap(
                (np.array(times[1]), np.array(times[k])),
                lambda a, b, axis: np.median(a, axis=axis) / np.median(b, axis=axis),
                method="percentile",
                n_resamples=20_000,
                rng=np.random.default_rng(5),
            ).confidence_interval
            assert (result.total.low, result.total.high) == pytest.approx(tuple(theirs), rel=0.01)
            assert result.total.low and result.total.high
            assert result.price_index.high == pytest.approx(k / result.total.low**2)
            assert result.compute.value == pytest.approx(
                _compute_median(records, 1) / _compute_median(records, k)
            )


def _compute_median(records: list[Record], workers: int) -> float:
    some = [record for record in records if record.workers == workers]
    return statistics.median(sum(r.phases[phase].mean for phase in COMPUTE) for r in some)


@pytest.mark.parametrize("status", ["goal_not_reached", "diverged", "failed"])
def test_a_run_that_missed_its_goal_is_infinite_and_listed(status: str) -> None:
    records = [
        studies.run(2, 0, time=10),
        studies.run(2, 1, time=11, status=status),
        studies.run(2, 2, time=12),
    ]
    (point,) = points(records)
    assert point.missed == (records[1].run_id,)
    assert (point.n, point.reached) == (3, 2)
    assert point.times == (10, math.inf, 12)
    assert point.time_to_accuracy == MedianEstimate(12, 10, math.inf, n=3)
    assert point.epochs and point.epochs.high == math.inf
    assert point.usd is None  # local hardware has no price


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"oversubscribed": True, "caveats": ["4 workers shared CPUs"]}, "oversubscribed"),
        ({"caveats": ["hardware=x states 8 CPUs a node, here has 2"]}, "states 8 CPUs"),
    ],
)
def test_oversubscribed_and_emulated_points_stand_apart(changes: dict[str, Any], reason: str) -> None:
    records = studies.study(T4, workers=(1, 2))
    records += [studies.run(4, seed, T4, time=30, **changes if seed == 0 else {}) for seed in range(3)]
    base = [record.time_to_accuracy or 0.0 for record in records if record.workers == 1]
    *allowed, apart = speedups(points(records))
    assert [result.why for result in allowed] == [None, None]
    assert apart.why and reason in apart.why
    assert apart.total is apart.compute is apart.efficiency is apart.price_index is None
    assert apart.excluded_ratio == pytest.approx(median(base) / 30)
    best = optimum([result.point for result in (*allowed, apart)])
    assert best and apart.point not in (best.point, *best.dominated, *best.undecided)


DIFFERENT: dict[str, dict[str, Any]] = {
    "task.batch_size": {"task": {"batch_size": 64}},
    "scale": {"scale": "official"},
    "hardware.cpus": {"hardware": {"cpus": 96}},
    "backend.name": {"backend": {"name": "mpi"}},
    "sync.bucket_cap_mb": {"sync": {"bucket_cap_mb": 1.0}},
    "cluster.name": {"cluster": {"name": "attached"}},
}
OTHERWISE: dict[str, dict[str, Any]] = {
    "goal": {"goal": Goal("top1_accuracy", 90, "max")},
    "source": {"source": "mlbench-published"},
    "mlbench": {"mlbench": "9.9.0"},
    "torch": {"software": {"packages": {"torch": "1.7.0"}}},
    "data": {"data_hash": "e" * 64},
}


@pytest.mark.parametrize("field", [*DIFFERENT, *OTHERWISE])
def test_no_speed_up_against_a_worker_that_differs_in_anything_else(field: str) -> None:
    values = {"software": {"packages": {"torch": "2.13.0"}}}
    base = [studies.run(1, seed, T4, time=90, **values) for seed in range(3)]
    changes = dict(values) | OTHERWISE.get(field, {})
    group = DIFFERENT.get(field, {})
    experiment = base[0].experiment.plain()
    changed = {name: experiment[name] | v if isinstance(v, dict) else v for name, v in group.items()}
    other = [studies.run(2, seed, T4, time=50, experiment=changed, **changes) for seed in range(3)]
    results = {result.point.workers: result for result in speedups(points(base + other))}
    assert results[2].total is None
    assert results[2].why and field in results[2].why


def test_local_hardware_is_told_apart_by_its_processors() -> None:
    here = [{"hostname": "a", "cpu_model": "slow", "usable_cpus": 2, "threads_per_worker": 1}]
    there = [{"hostname": "b", "cpu_model": "fast", "usable_cpus": 2, "threads_per_worker": 1}]
    base = studies.run(1, 0, time=90, nodes=here)
    assert _why(base, studies.run(2, 0, time=50, nodes=[*here, here[0] | {"hostname": "c"}])) is None
    assert "machine" in (_why(base, studies.run(2, 0, time=50, nodes=there)) or "")


def _why(base: Record, other: Record) -> str | None:
    return next(result.why for result in speedups(points([base, other])) if result.point.workers == 2)


def test_other_threads_a_worker_are_noted() -> None:
    node = {"hostname": "a", "cpu_model": "x", "usable_cpus": 2}
    first = studies.run(1, 0, time=90, nodes=[node | {"threads_per_worker": 2}])
    second = studies.run(2, 0, time=50, nodes=[node | {"threads_per_worker": 1}])
    base, other = speedups(points([first, second]))
    assert base.note is None
    assert other.total and other.note and "2 CPU threads" in other.note


def test_the_optimum_is_the_least_product_of_price_and_time_and_says_how_sure_it_is(
    snapshot: SnapshotAssertion,
) -> None:
    def records(four: float, noise: float) -> list[Record]:
        wanted = {1: 100.0, 2: 60.0, 4: four}
        return [
            studies.run(k, seed, T4, time=time * (1 + noise * (seed - 2)))
            for k, time in wanted.items()
            for seed in range(5)
        ]

    clear = optimum(points(records(30.0, 0.005)))
    assert clear and clear.point.workers == 4 and [p.workers for p in clear.dominated] == [1, 2]
    assert clear.sentence == snapshot
    # 2 x 60^2 = 7200 and 4 x 42.6^2 = 7259: 2 workers are ahead by less than the noise
    close = optimum(points(records(42.6, 0.05)))
    assert close and close.point.workers == 2 and [p.workers for p in close.undecided] == [4]
    assert close.sentence == snapshot
    single = optimum(points([r for r in records(30.0, 0.0) if r.seed == 2]))
    assert single and not single.dominated and single.sentence == snapshot


@pytest.mark.parametrize(("of_best", "of_other"), [(5, 2), (2, 5)])
def test_two_runs_of_one_point_show_no_difference_however_many_the_other_has(
    of_best: int, of_other: int, snapshot: SnapshotAssertion
) -> None:
    records = [studies.run(2, seed, T4, time=20.0 + seed / 10) for seed in range(of_best)]
    records += [studies.run(1, seed, T4, time=100.0 + seed / 10) for seed in range(of_other)]
    best = optimum(points(records))
    assert best and best.point.workers == 2 and not best.dominated
    assert best.sentence == snapshot


def test_a_run_without_phases_says_nothing_of_the_others_phases() -> None:
    timed = [studies.run(1, seed, T4, time=100.0) for seed in range(2)]
    (point,), (both,) = (
        points(timed),
        points([*timed, studies.run(1, 2, T4, time=100.0, phases={}, outside={})]),
    )
    assert both.n == 3 and both.phases == pytest.approx(point.phases)
    assert both.outside == pytest.approx(point.outside)


def test_runs_without_a_goal_have_no_time_and_no_speed_up(snapshot: SnapshotAssertion) -> None:
    free = [studies.run(k, 0, time=50, goal=None, status="completed", time_to_accuracy=None) for k in (1, 2)]
    results = speedups(points(free))
    assert [result.why for result in results] == snapshot
    assert [result.point.time_to_accuracy for result in results] == [None, None]
    assert [result.point.missed for result in results] == [(), ()]
    assert all(result.point.seconds_per_epoch for result in results)


EIGHT_A_NODE = ("hardware=gcp_a3_highgpu_8g", "backend=nccl")


def test_with_eight_workers_a_node_efficiency_is_over_workers_and_price_over_nodes() -> None:
    records = [
        studies.run(workers, seed, *EIGHT_A_NODE, time=time)
        for workers, time in ((1, 160.0), (8, 40.0), (16, 25.0))
        for seed in range(3)
    ]
    single, eight, sixteen = speedups(points(records))
    assert [compared.point.nodes for compared in (single, eight, sixteen)] == [1, 1, 2]
    assert eight.efficiency and eight.efficiency.value == pytest.approx(4.0 / 8)
    assert sixteen.efficiency and sixteen.efficiency.value == pytest.approx(6.4 / 16)
    assert eight.price_index and eight.price_index.value == pytest.approx(1 / 4.0**2)
    assert sixteen.price_index and sixteen.price_index.value == pytest.approx(2 / 6.4**2)


def test_a_point_of_which_one_run_was_not_instrumented_has_no_compute_time() -> None:
    blank = {"phases": {}, "exposed_communication_share": None, "overlapped_communication": None}
    records = [studies.run(1, seed, T4, time=100.0, **(blank if seed == 2 else {})) for seed in range(3)]
    (point,) = points(records)
    assert point.compute is None and point.compute_times == ()
    assert point.time_to_accuracy and point.time_to_accuracy.n == 3


def test_an_interval_is_expanded_by_student_s_t_with_n_less_one_degrees_of_freedom() -> None:
    for n in (3, 7, 20):
        tail = stats.norm.cdf(math.sqrt(n / (n - 1)) * stats.t.ppf(0.025, n - 1))
        assert bootstrap._expanded(0.025, n) == pytest.approx(tail, rel=1e-9)


def calibrated(seed: int, rate: float, **changes: Any) -> Record:
    rates = {"cpu_gemm_flops_per_s": rate}
    node = {"hostname": "here", "usable_cpus": 2, "cpu_model": "A", "calibration": rates}
    run = studies.run(1, seed, T4, time=changes.pop("time", 100.0), **changes)
    return Record.model_validate(run.model_dump(mode="json") | {"nodes": [node | {"threads_per_worker": 1}]})


def test_the_slowest_node_of_a_run_tells_its_speed() -> None:
    runs = [calibrated(seed, rate) for seed, rate in enumerate((200e9, 205e9, 198e9))]
    mixed = calibrated(9, 95e9)
    fast = mixed.nodes[0].model_copy(update={"calibration": {"cpu_gemm_flops_per_s": 210e9}})
    mixed = mixed.model_copy(update={"nodes": [fast, *mixed.nodes]})
    (point,) = points([*runs, mixed])
    assert list(point.disturbed) == [mixed.run_id]


def test_of_a_gpu_s_run_the_gpu_tells_the_speed() -> None:
    """A CPU that was slow for a moment is nothing to it."""

    def on_gpu(seed: int, cpu: float, gpu: float) -> Record:
        rates = {"cpu_gemm_flops_per_s": cpu, "cuda_gemm_flops_per_s": gpu}
        node = {"hostname": "here", "usable_cpus": 2, "calibration": rates}
        return studies.run(1, seed, T4, "backend=nccl", time=100.0, nodes=[node])

    throttled = on_gpu(4, 200e9, 4e12)
    (point,) = points([*(on_gpu(seed, 200e9, 8e12) for seed in range(3)), on_gpu(3, 90e9, 8e12), throttled])
    assert list(point.disturbed) == [throttled.run_id]


def test_a_run_on_a_node_at_half_speed_is_left_out_and_listed() -> None:
    runs = [calibrated(seed, rate) for seed, rate in enumerate((200e9, 205e9, 198e9))]
    slow = calibrated(9, 95e9, time=190.0)
    (point,) = points([*runs, slow])
    assert point.n == 3 and point.times == (100.0,) * 3
    assert list(point.disturbed) == [slow.run_id] and "52 % slower" in point.disturbed[slow.run_id]
    assert point.usd_spent == pytest.approx(sum(run.cost.wall_usd for run in (*runs, slow) if run.cost))
    (whole,) = points([*runs, slow], with_disturbed=True)
    assert whole.n == 4 and max(whole.times) == 190.0
    missed = calibrated(8, 95e9, status="goal_not_reached")
    (point,) = points([*runs, missed])
    assert point.n == 4 and point.missed == (missed.run_id,)  # a missed goal is never left out


@pytest.mark.parametrize(("args", "said"), [("--lr 0.1", True), ("--seed {seed}", False)])
def test_an_answer_says_that_a_script_had_no_seed(args: str, *, said: bool) -> None:
    words = ("task=script", "task.path=tests/script/scripts/ddp.py", "task.metric=acc", "goal=0.9")
    runs = [studies.run(1, k, *words, f"task.args={args}", time=100.0 + k) for k in range(3)]
    (group,) = groups(runs)
    assert ("{seed}" in answer(group)[-1]) is said
    (group,) = groups(runs[:1])
    assert "{seed}" not in answer(group)[-1]


@pytest.mark.parametrize(("days", "said"), [(((1, 3, 5), (2, 4, 6)), False), (((1, 2, 3), (4, 5, 6)), True)])
def test_an_answer_says_that_points_were_not_measured_in_turns(days: Any, *, said: bool) -> None:
    """Workers that are added to a study on another day differ from the others by that day, too."""
    runs = [
        studies.run(k, day, time=100 / k + day, started_at=f"2026-11-{day:02}T03:45:01.123+00:00")
        for k, some in zip((1, 2), days, strict=True)
        for day in some
    ]
    assert ("not in turns" in answer(groups(runs)[0])[-1]) is said


def test_a_point_says_what_its_runs_mix(snapshot: SnapshotAssertion) -> None:
    record = calibrated(1, 200e9)
    software = record.model_dump(mode="json")["software"] | {"packages": {"ray": "1.0"}}
    other = Record.model_validate(calibrated(2, 200e9).model_dump(mode="json") | {"software": software})
    base = Record.model_validate(
        record.model_dump(mode="json") | {"software": software | {"packages": {"ray": "2.0"}}}
    )
    (point,) = points([base, other])
    assert point.mixture == ("2 versions of ray",) and point.exclusion_reason is None
    nodes = [node | {"cpu_model": "B"} for node in other.model_dump(mode="json")["nodes"]]
    moved = Record.model_validate(other.model_dump(mode="json") | {"nodes": nodes})
    (point,) = points([base, moved])
    assert "2 kinds of machines" in point.mixture
    assert point.exclusion_reason == snapshot


@pytest.mark.parametrize(
    ("changes", "mixture"),
    [
        ({"code": "edited and not committed"}, ("2 states of the code",)),
        ({"python": "3.0"}, ("2 versions of Python",)),
        ({"environment": {"OMP_PLACES": "cores"}}, ("2 settings of the environment",)),
        ({"environment": {"GLOO_SOCKET_IFNAME": "lo", "MLBENCH_PARENT": "7"}}, ()),
    ],
)
def test_code_python_and_variables_that_differ_are_a_mixture(changes: dict[str, Any], mixture: Any) -> None:
    one, other = calibrated(1, 200e9), calibrated(2, 200e9)
    software = other.software.model_copy(update=changes)
    (point,) = points([one, other.model_copy(update={"software": software})])
    assert point.mixture == mixture


def at_speed(workers: int, rate: float, *overrides: str, repeats: int = 3) -> list[Record]:
    """Return runs whose single node computed at so many FLOP/s, and their times accordingly."""
    calibration = {"threads": 2.0, "cpu_gemm_flops_per_s": rate}
    node = {"hostname": "here", "usable_cpus": 2, "threads_per_worker": 1, "calibration": calibration}
    some = [
        studies.run(workers, k, *overrides, time=(100 + k) * 2e11 / rate / workers) for k in range(repeats)
    ]
    return [Record.model_validate(run.model_dump(mode="json") | {"nodes": [node]}) for run in some]


def test_a_machine_that_became_faster_is_no_speed_up(snapshot: SnapshotAssertion) -> None:
    """One worker at 100 GFLOP/s and two at 200 were 4 times as fast, an efficiency of 200 %."""
    (group,) = groups([*at_speed(1, 100e9), *at_speed(2, 200e9)])
    first, second = (compared for curve in group.curves for compared in curve.speedups)
    assert first.why is None and second.total is None and second.excluded_ratio == pytest.approx(4)
    assert second.why == snapshot
    assert answer(group)[0] == snapshot
    (group,) = groups([*at_speed(1, 200e9), *at_speed(2, 90e9)])
    assert answer(group)[0] == snapshot
    (group,) = groups([*at_speed(1, 200e9)])
    assert answer(group)[0] == snapshot
    (group,) = groups([*at_speed(1, 200e9), *at_speed(2, 209e9)])
    second = group.curves[0].speedups[1]
    assert second.total is not None and "calibrated" not in (second.note or "")
    (group,) = groups([*at_speed(1, 200e9), *(studies.run(2, k, time=50.0) for k in range(3))])
    note = group.curves[0].speedups[1].note
    assert note == snapshot


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_what_the_speed_of_a_machine_cannot_explain_is_shown(
    factor: float, snapshot: SnapshotAssertion
) -> None:
    """Two workers at 180 GFLOP/s need 1.1 and 4.4 times the time of one at 200 GFLOP/s."""
    slow = [
        run.model_copy(update={"time_to_accuracy": factor * (110 + run.seed)}) for run in at_speed(2, 180e9)
    ]
    (group,) = groups([*at_speed(1, 200e9), *slow])
    assert group.curves[0].speedups[1].total is None and answer(group)[0] == snapshot


def test_nothing_is_shown_between_machines_of_two_speeds(snapshot: SnapshotAssertion) -> None:
    """Neither a price-performance optimum nor a slower curve."""
    (group,) = groups([*at_speed(2, 200e9), *at_speed(4, 100e9)])
    best = optimum(group.curves[0].points)
    assert best is not None and [point.workers for point in best.undecided] == [4]
    assert "4 workers no comparison" in best.sentence
    (group,) = groups([*at_speed(2, 200e9), *at_speed(2, 150e9, "sync=zero1")])
    assert answer(group)[0] == snapshot
    (group,) = groups([*at_speed(2, 200e9), *at_speed(2, 199e9, "sync=zero1", repeats=5)])
    assert "calibrated" not in " ".join(answer(group))
    slow = [
        run.model_copy(update={"time_to_accuracy": 400.0 + run.seed})
        for run in at_speed(2, 150e9, "sync=zero1")
    ]
    (group,) = groups([*at_speed(2, 200e9), *slow])
    said = answer(group)[0]
    assert "zero1 is shown to be slower, though not by how much" in said and "as long" not in said


def test_a_goal_has_no_cost_where_a_run_that_reached_it_had_no_price(snapshot: SnapshotAssertion) -> None:
    """Such a run counted as if it had missed the goal, so the cost was infinite, or the dearest run's."""
    priced = studies.run(1, 1, T4, time=100.0)
    hardware = priced.experiment.plain()["hardware"] | {"price": None}
    free = [
        studies.run(1, seed, T4, time=100.0, cost=None, experiment={"hardware": hardware}) for seed in (2, 3)
    ]
    (group,) = groups([priced, *free])
    (point,) = group.points
    assert (point.usd, point.usd_spot, point.usd_with_startup) == (None, None, None)
    assert point.mixture == ("2 prices",)
    chart = next(chart for chart in charts(group) if chart.name == "cost")
    assert notes(chart) == snapshot
    (point,) = points([priced, studies.run(1, 4, T4, time=9, status="failed")])
    assert point.usd and point.usd.value == math.inf  # a missed goal has a price, and no end


def test_a_start_up_of_half_the_time_to_the_goal_costs_half_as_much_again() -> None:
    (point,) = points([studies.run(1, seed, T4, time=50.0, startup_time=25.0) for seed in (1, 2)])
    assert point.usd and point.usd_with_startup
    assert point.usd_with_startup.value == pytest.approx(1.5 * point.usd.value)


@pytest.mark.parametrize(
    ("epochs", "sentence"),
    [(2, "more than 2 times as fast with 2 workers: 2 epochs to the goal instead of 4"), (4, "doubt it")],
)
def test_a_speed_up_above_the_number_of_workers_is_explained_or_doubted(epochs: int, sentence: str) -> None:
    first, second = studies.run(1, 0, time=90), studies.run(2, 0, time=40, epochs=epochs)
    base, other = speedups(points([first, second]))
    assert base.note is None and other.note and sentence in other.note
    _, plain = speedups(points([first, studies.run(2, 0, time=46)]))
    assert plain.note is None

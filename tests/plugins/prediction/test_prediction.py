"""Predictions against worlds whose truth is known, an independent fit, and what was published."""

import itertools
import math
import re
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from drawings import series
from hypothesis import given, settings
from hypothesis import strategies as st
from prediction import pairs
from sklearn.linear_model import LinearRegression
from syrupy.assertion import SnapshotAssertion
from worlds import NODE, World, as_record

from mlbench.config.errors import UserError
from mlbench.plugins.prediction import charts, model, published_runs, sentences
from mlbench.plugins.prediction.forecast import (
    Forecast,
    PredictedInterval,
    _interval,
    advise,
    compare,
    extrapolation_error,
    forecast,
    held_out,
    leave_one_out,
    old_price,
)
from mlbench.plugins.prediction.model import (
    Measurements,
    NetworkCost,
    Spot,
    Target,
    _until,
    check,
    from_records,
)
from mlbench.plugins.prediction.processors import factor, profile
from mlbench.record.record import Record

DRAWS = 250  # instead of 1,000: the ends of an interval move by 6 % between seeds instead of 3 %
COUNTS = (1, 2, 4, 8, 16)
FAR = [32, 64, 256, 1024]


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlbench.plugins.prediction.forecast.DRAWS", DRAWS)


def times(predictions: list[Forecast]) -> list[float]:
    return [prediction.time_s.value for prediction in predictions]


def truth(world: World, counts: list[int]) -> list[float]:
    return [world.run(k).total_s for k in counts]


# --- one part


def test_a_term_that_the_runs_cannot_tell_is_left_out() -> None:
    terms = np.array([[1.0, 128.0], [1.0, 128.0], [1.0, 128.0]])
    part = model.part(terms, np.array([2.0, 2.0, 2.0]))
    assert part.theta == pytest.approx([2.0, 0.0])
    assert part.dof == 2


def test_a_part_that_takes_no_time_has_no_noise() -> None:
    part = model.part(np.ones((3, 2)), np.zeros(3))
    assert part.theta == pytest.approx([0.0, 0.0])
    assert (part.dof, list(part.residuals)) == (0, [0.0, 0.0, 0.0])


# --- worlds


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("grows", [False, True])
def test_a_world_without_noise_is_recovered(tree: bool, grows: bool) -> None:
    batch, growth = (32, 1e-3) if grows else (1024, 0.0)
    world = World(tree=tree, grows=grows, batch=batch, epochs=(6.0, growth))
    fit = model.fit(world.measure(COUNTS))
    name = "tree" if tree else "ring"
    assert list(fit.allreduce["network"]) == [name]
    assert fit.allreduce["network"][name].theta == pytest.approx([world.alpha, world.volume], rel=1e-6)
    assert fit.parts["epochs"].theta == pytest.approx(world.epochs, rel=1e-6)
    assert fit.parts["outside"].theta == pytest.approx(world.outside, rel=1e-6)
    if not grows:  # else every worker has the same samples, and only the sum can be told
        assert fit.parts["compute"].theta == pytest.approx([world.fixed, world.a_sample], rel=1e-6)
    assert times(forecast(fit, [1, *FAR])) == pytest.approx(truth(world, [1, *FAR]), rel=0.02)


def test_what_is_hidden_behind_backward_is_not_waited_for() -> None:
    world = World(hidden=0.6, volume=0.02, alpha=1e-3)
    (prediction,) = forecast(model.fit(world.measure(COUNTS)), [8])
    assert prediction.time_s.value == pytest.approx(world.run(8).total_s, rel=1e-4)
    exposed = 0.4 * world.all_reduce(8)
    assert prediction.communication_share == pytest.approx(exposed / prediction.step_s, rel=1e-3)


def test_no_more_hides_than_compute_was_seen_to_hide() -> None:
    fit = model.fit(World(hidden=0.6, volume=0.02, alpha=1e-3).measure(COUNTS))
    far = forecast(fit, [1024])[0]
    whole = 2 * 1023 * 1e-3 + 2 * 1023 / 1024 * 0.02
    assert far.communication_share * far.step_s > 0.9 * whole  # compute is too short to hide it


WORLDS = (
    World(),
    World(tree=True),
    World(grows=True, batch=32, epochs=(6.0, 1e-3)),
    World(scatter=0.3, volume=0.6),
)


@pytest.mark.slow
def test_at_least_95_percent_of_further_runs_lie_in_the_interval() -> None:
    tries, inside, ratios = 10, 0, 0  # of each world
    for world, seed in itertools.product(WORLDS, range(tries)):
        fit = model.fit(world.measure((1, 2, 4), repeats=3, noise=0.04, luck=0.08, seed=seed))
        (prediction,) = forecast(fit, [16])
        rng = np.random.default_rng(10_000 + seed)
        further = world.run(16, noise=0.04, luck=0.08, rng=rng).total_s
        time, speedup = prediction.time_s, prediction.speedup
        assert time.low and time.high and speedup.low and speedup.high
        inside += time.low <= further <= time.high
        ratios += speedup.low <= world.run(1).total_s / world.run(16).total_s <= speedup.high
    least = 0.85 * tries * len(WORLDS)  # 0.95 less almost three standard errors of 40 tries
    assert min(inside, ratios) >= least, (inside, ratios)


def test_an_interval_is_not_just_wide() -> None:
    fit = model.fit(World(grows=True, batch=32).measure(COUNTS, repeats=5, noise=0.02, luck=0.02))
    near, far = forecast(fit, [4, 1024])
    width = [
        prediction.time_s.high / prediction.time_s.low
        for prediction in (near, far)
        if prediction.time_s.high and prediction.time_s.low
    ]
    assert 1.05 < width[0] < 1.2 < width[1]
    assert (near.extrapolated, far.extrapolated) == (False, True)


def test_what_scatters_in_communication_alone_is_in_the_interval() -> None:
    """A network that others use; it takes 90 % of a step of 4 workers, and nothing of one worker's."""

    def width(workers: int, scatter: float) -> float:
        world = World(scatter=scatter, volume=0.6)
        fit = model.fit(world.measure((1, 2, 4), repeats=3, noise=0.01, luck=0.01))
        time = forecast(fit, [workers])[0].time_s
        assert time.low and time.high
        return time.high / time.low

    assert width(4, scatter=0.3) > 2.0 > 1.2 > width(4, scatter=0.0)  # 1.6 of the mean of many runs
    assert width(1, scatter=0.3) < 1.2
    said = sentences.basis(model.fit(World(scatter=0.3).measure(COUNTS, repeats=3, noise=0.01, luck=0.01)))
    assert any("communication and" in sentence for sentence in said)


def test_runs_that_tell_nothing_of_noise_get_no_interval() -> None:
    fit = model.fit(World(grows=True, batch=32).measure((1, 2)))
    (prediction,) = forecast(fit, [8])
    assert prediction.time_s.low is None and prediction.speedup.low is None
    assert any(sentence.startswith("No intervals") for sentence in sentences.basis(fit))


def test_runs_that_scatter_too_much_are_called_so() -> None:
    said = [
        sentences.leading(
            model.fit(World().measure(COUNTS, repeats=3, noise=n, luck=0.05)), Target(), most=1, wanted=1
        )[1]
        for n in (0.05, 0.8)
    ]
    assert said[0] is None and said[1] and said[1].startswith("Unreliable: ")


# --- limits


@pytest.mark.slow
@settings(max_examples=5)
@given(
    compute=st.floats(1e-5, 1e-2),
    fixed=st.floats(0, 1e-2),
    alpha=st.floats(1e-6, 1e-2),
    volume=st.floats(1e-4, 1.0),
)
def test_limits(compute: float, fixed: float, alpha: float, volume: float) -> None:
    world = World(a_sample=compute, fixed=fixed, alpha=alpha, volume=volume)
    fit = model.fit(world.measure(COUNTS))
    counts = [1, 2, 4, 8, 16, 64, 1024]
    predictions = forecast(fit, counts)
    assert predictions[0].speedup.value == pytest.approx(1.0)
    assert predictions[0].communication_share == 0.0
    perfect = NetworkCost("perfect", latency_s=0.0, s_per_byte=0.0, measured=True)
    free = forecast(fit, counts, Target(network=perfect))
    assert all(prediction.communication_share == pytest.approx(0.0, abs=1e-9) for prediction in free)
    assert all(a >= b * (1 - 1e-9) for a, b in zip(times(free), times(free)[1:], strict=False))
    assert all(a <= b * (1 + 1e-9) for a, b in zip(times(free), times(predictions), strict=True))
    for prediction in predictions:
        assert prediction.cost_usd is not None
        assert prediction.cost_usd.value == pytest.approx(
            prediction.workers * prediction.time_s.value / 3600 * 1.8
        )
    # What no worker can share out stays, however many there are.
    floor = 6.0 * (world.epoch_samples / world.batch * (fixed + world.optimizer) + world.outside[0])
    assert times(free)[-1] >= floor * (1 - 1e-6)


def test_another_network_is_what_it_states() -> None:
    world = World()
    fit = model.fit(world.measure(COUNTS))
    same_rate = 0.06 / 4e6  # s a byte, as in the world
    measured_network = NetworkCost("run", world.alpha, same_rate, measured=True)
    assert times(forecast(fit, FAR, Target(network=measured_network))) == pytest.approx(
        truth(world, FAR), rel=0.01
    )
    # Stated: 8 Gbit/s were stated for the measured ones too, so doubling the rate halves the volume.
    double = NetworkCost.stated("16gbit,20000us")
    assert times(forecast(fit, FAR, Target(network=double))) == pytest.approx(
        truth(replace(world, volume=0.03), FAR), rel=0.01
    )


def test_a_stated_network_is_never_faster_than_its_line_rate() -> None:
    world = replace(World(), volume=1e-5, alpha=0.0)  # 4 MB in 10 us: more than 8 Gbit/s can carry
    (prediction,) = forecast(
        model.fit(world.measure(COUNTS)), [8], Target(network=NetworkCost.stated("8gbit,0us"))
    )
    assert prediction.communication_share * prediction.step_s == pytest.approx(2 * 7 / 8 * 4e6 * 8 / 8e9)


def test_a_picture_of_something_else_has_no_measured_runs_and_says_what_it_is_of() -> None:
    runs = World().measure(COUNTS)
    rows = forecast(model.fit(runs), [1, 2])
    own, other = (
        charts.chart(rows, fitted=runs, held_out=runs.only([]), conditions=conditions)
        for conditions in ("", "hardware=other")
    )
    assert "measured" in series(own) and own.title.subtitle.endswith("16 workers")
    assert "measured" not in series(other)
    assert other.title.subtitle.endswith("for hardware=other")


def test_the_line_of_an_allreduce_run_is_a_network() -> None:
    line = {"kind": "fit", "collective": "all_reduce", "dtype": "float32", "workers": 4}
    line |= {"alpha_s": 6e-3, "beta_s_per_byte": 1.5e-9}
    network = NetworkCost.of_table("run", [line])
    assert (network.latency_s, network.s_per_byte, network.measured) == (
        pytest.approx(1e-3),
        pytest.approx(1e-9),
        True,
    )
    with pytest.raises(UserError, match="measured no bandwidth"):
        NetworkCost.of_table("run", [])
    with pytest.raises(UserError, match="measured no bandwidth"):
        NetworkCost.of_table("run", [{"kind": "decoding", "images_per_s_per_process": 800.0}])


def test_other_hardware_is_scaled_by_stated_peaks_and_has_its_own_price() -> None:
    world = World()
    fit = model.fit(world.measure(COUNTS))
    assert NODE.peak is not None and NODE.price is not None
    peak = NODE.peak.model_copy(update={"fp32": 4e12})
    price = NODE.price.model_copy(update={"usd_per_hour": 3.6})
    faster = NODE.model_copy(update={"name": "faster", "peak": peak, "price": price, "workers_per_node": 8})
    links = {"node_link_gbit_per_s": 80.0, "node_link_us": 10.0, "network_us": 20.0}
    faster = faster.model_copy(update=links)
    predictions = forecast(fit, [1, 16], Target(hardware=faster))
    quick = replace(world, fixed=world.fixed / 4, a_sample=world.a_sample / 4, optimizer=world.optimizer / 4)
    assert times(predictions)[0] == pytest.approx(quick.run(1).total_s, rel=0.01)
    # 16 workers on 2 nodes: 8 sum 4 MB at 80 Gbit/s, then 2 nodes over their link of 8 Gbit/s. It
    # reaches the share of it that the measured runs reached of theirs, which is 4 MB in 0.06 s.
    hops = 14 * 1e-5 + 2 * 2e-5
    sent = 2 * 7 / 8 * 4e6 * 8 / 80e9 + world.volume + hops
    step = predictions[1].communication_share * predictions[1].step_s
    assert step == pytest.approx(sent, rel=0.01)
    assert predictions[1].cost_usd is not None
    # 16 workers on 2 nodes
    assert predictions[1].cost_usd.value == pytest.approx(2 * times(predictions)[1] / 3600 * 3.6)


def test_unknown_gradients_forbid_another_network_alone(as_stored: Any) -> None:
    fit = model.fit(replace(World().measure(COUNTS), gradient_bytes=None))
    assert times(forecast(fit, [16])) == pytest.approx(truth(World(), [16]), rel=0.01)
    with pytest.raises(UserError, check=as_stored):
        forecast(fit, [16], Target(network=NetworkCost.stated("10gbit,10us")))


def test_more_workers_than_samples_are_refused() -> None:
    fit = model.fit(World().measure(COUNTS))
    with pytest.raises(UserError, match="2,048 workers are more"):
        forecast(fit, [2048])


# --- leave one out


def test_leave_one_out_equals_an_independent_computation() -> None:
    world = World(grows=True, batch=32, data_wait=0.0, optimizer=0.0)
    runs = world.measure((1, 4, 16), noise=0.05, seed=3)
    single, four, sixteen = runs.runs
    predictions = {left.workers: left for left in leave_one_out(runs)}

    def line(terms: list[list[float]], values: list[float]) -> np.ndarray:
        reference, theta = np.array(values), np.zeros(2)
        for _ in range(3):
            rows, wanted = np.array(terms) / reference[:, None], np.array(values) / reference
            theta = LinearRegression(positive=True, fit_intercept=False).fit(rows, wanted).coef_
            reference = np.array(terms) @ theta
        return theta

    def steps(k: int) -> float:
        return world.epoch_samples / (32 * k)

    # Without 4: one count tells of communication, so it is half all bandwidth and half all latency.
    compute = line([[1, 0], [1, 0]], [r.compute_s / r.steps for r in (single, sixteen)])[0]
    outside = line([[1, 1], [1, 1 / 16]], [r.outside_s / r.epochs for r in (single, sixteen)])
    spent = sixteen.communication_s / sixteen.steps
    exposed = (spent * (2 * 3 / 4) / (2 * 15 / 16) + spent * math.log2(4) / math.log2(16)) / 2
    expected = 6.0 * (steps(4) * (compute + exposed) + outside @ [1, 1 / 4])
    assert predictions[4].predicted_s == pytest.approx(expected, rel=1e-6)
    assert predictions[4].time_error == pytest.approx(expected / four.total_s - 1)
    # Without 1: nothing is sent there.
    compute = line([[1, 0], [1, 0]], [r.compute_s / r.steps for r in (four, sixteen)])[0]
    outside = line([[1, 1 / 4], [1, 1 / 16]], [r.outside_s / r.epochs for r in (four, sixteen)])
    expected = 6.0 * (steps(1) * compute + outside @ [1, 1])
    assert predictions[1].predicted_s == pytest.approx(expected, rel=1e-6)


def test_a_count_that_missed_its_goal_has_no_error() -> None:
    runs = World().measure((1, 2, 4, 8))
    missed = replace(runs, runs=tuple(replace(r, reached=r.workers < 4) for r in runs.runs))
    assert [prediction.workers for prediction in leave_one_out(missed)] == [1, 2]
    assert held_out(model.fit(missed.only([1, 2])), missed) == []
    assert [prediction.workers for prediction in held_out(model.fit(runs.only([1, 2])), runs)] == [4, 8]


def test_the_point_that_is_predicted_has_no_say_in_its_prediction() -> None:
    runs = World().measure((1, 2, 4, 8), noise=0.03)
    spoiled = replace(runs, runs=tuple(replace(r, compute_s=9e9) if r.workers == 8 else r for r in runs.runs))
    fits = [model.fit(variant.only([1, 2, 4])) for variant in (runs, spoiled)]
    assert forecast(fits[0], [8]) == forecast(fits[1], [8])


def test_intervals_widen_beyond_what_was_measured_by_what_the_model_was_off_there() -> None:
    right = World().measure((1, 2, 4))
    bent = replace(
        right,
        runs=tuple(
            replace(r, communication_s=3 * r.communication_s) if r.workers == 4 else r for r in right.runs
        ),
    )
    assert extrapolation_error(right.only([1, 2])) == 0.0
    off = compare(model.fit(bent.only([1, 2])), bent.only([4])).epoch_error
    assert off < -0.2
    assert extrapolation_error(bent) == pytest.approx(-math.log1p(off))  # 4 is one doubling beyond 2
    assert extrapolation_error(bent) > 2 * extrapolation_error(right)
    far = replace(bent, runs=tuple(replace(r, workers=8) if r.workers == 4 else r for r in bent.runs))
    off = compare(model.fit(far.only([1, 2])), far.only([8])).epoch_error
    assert extrapolation_error(far) == pytest.approx(abs(math.log1p(off)) / 2)  # 8 is two


def test_an_interval_holds_95_of_100_draws_and_its_value() -> None:
    drawn = np.arange(1001.0)
    assert _interval(500.0, drawn) == PredictedInterval(500.0, 25.0, 975.0)
    assert _interval(2000.0, drawn) == PredictedInterval(2000.0, 25.0, 2000.0)


# --- nodes with several workers


NODES = NODE.model_copy(update={"workers_per_node": 4, "node_link_gbit_per_s": 100.0, "node_link_us": 5.0})


def on_nodes(k: int) -> float:
    """Return the seconds of an all-reduce of 4 MB: 4 workers a node at 40 Gbit/s, nodes at 4 Gbit/s."""
    inside, nodes = min(k, 4), math.ceil(k / 4)
    fast = 2 * (inside - 1) * 1e-4 + 2 * (inside - 1) / inside * 4e6 * 8 / 40e9
    return fast + 2 * (nodes - 1) * 2e-3 + 2 * (nodes - 1) / nodes * 4e6 * 8 / 4e9


def two_tiers(*counts: int) -> Measurements:
    runs = [replace(World().run(k), communication_s=on_nodes(k) * World().run(k).steps) for k in counts]
    return replace(World().measure(()), runs=tuple(runs), hardware=NODES)


def test_links_inside_and_between_nodes_are_fitted_apart() -> None:
    fit = model.fit(two_tiers(1, 2, 4, 8, 16, 32))
    assert fit.allreduce["node_link"]["ring"].theta == pytest.approx([1e-4, 8e-4])
    assert fit.allreduce["network"]["ring"].theta == pytest.approx([2e-3, 8e-3])
    for prediction in forecast(fit, [4, 64]):
        assert prediction.communication_share * prediction.step_s == pytest.approx(
            on_nodes(prediction.workers), rel=0.05
        )


def test_a_second_node_over_a_link_that_nobody_knows_is_refused() -> None:
    fit = model.fit(two_tiers(1, 2, 4))
    assert [prediction.workers for prediction in forecast(fit, [4])] == [4]
    with pytest.raises(UserError, match=r"has no hardware.network_us.*network=10gbit,50us"):
        forecast(fit, [8])
    (eight,) = forecast(fit, [8], Target(hardware=NODES.model_copy(update={"network_us": 2000.0})))
    crossing = 2 * 2e-3 + 4e6 * 8 / 8e9
    assert eight.communication_share * eight.step_s == pytest.approx(on_nodes(4) + crossing, rel=1e-3)


@pytest.mark.parametrize("per_node", [1, 2])
def test_gloo_is_one_ring_of_two_delays_a_hop_over_all_links(per_node: int) -> None:
    """benchmarks/delays.py measures it: 2 x 2 hosts take as long as 4 with the slow link."""
    node = NODE.model_copy(update={"workers_per_node": per_node, "network_gbit_per_s": None})
    fit = model.fit(replace(World(alpha=0.0).measure((1, 2)), hardware=node, backend="gloo"))
    (four,) = forecast(fit, [4], Target(network=NetworkCost.stated("1gbit,5000us")))
    ring = 2 * 3 * (2 * 5e-3) + 2 * 3 / 4 * 4e6 * 8 / 1e9
    assert four.communication_share * four.step_s == pytest.approx(ring, rel=1e-6)


@pytest.mark.parametrize(
    ("overrides", "gbit_per_s"),
    [
        ((), 1.0),
        (("network.bandwidth_down_mbit_s=200",), 0.2),
        (("network.rack_bandwidth_mbit_s=100",), 1.0),  # there is one rack
        (("network.racks=2", "network.rack_bandwidth_mbit_s=100"), 0.1),
        (("network.slow_rank=1", "network.slow_bandwidth_mbit_s=50"), 0.05),
    ],
)
def test_the_slowest_emulated_link_is_the_one_between_nodes(
    overrides: tuple[str, ...], gbit_per_s: float
) -> None:
    runs = [as_record(World().run(k), "network=1gbit_1ms", *overrides, seed=k) for k in (2, 4)]
    hardware = model.from_records(runs, title="emulated").hardware
    assert hardware.network_gbit_per_s == pytest.approx(gbit_per_s)
    plain = [as_record(World().run(k), seed=k) for k in (2, 4)]
    assert model.from_records(plain, title="real").hardware.network_gbit_per_s is None


# --- spot nodes


def lived(spot: Spot, seconds: float, nodes: int, rng: np.random.Generator) -> float:
    """Return the s of a run, event by event: the next interruption, the last checkpoint, the restart."""
    clock, done = 0.0, 0
    work, overhead = seconds / spot.checkpoints, 0.0
    while done < spot.checkpoints:
        free = rng.exponential(3600 / (spot.per_hour * nodes))
        if free < overhead:  # interrupted before it trained again
            clock, overhead = clock + free, spot.restart_s
            continue
        parts = min(int((free - overhead) / work), spot.checkpoints - done)
        done += parts
        if done == spot.checkpoints:
            return clock + overhead + parts * work
        clock, overhead = clock + free, spot.restart_s
    return clock


@pytest.mark.parametrize(("per_hour", "restart_s"), [(0.05, 120.0), (0.5, 300.0), (2.0, 60.0)])
def test_an_interrupted_run_takes_as_long_as_its_events(per_hour: float, restart_s: float) -> None:
    spot, rng = Spot(per_hour, restart_s, 20), np.random.default_rng(5)
    drawn = [spot.draw(7200.0, 4, rng) for _ in range(3000)]
    events = [lived(spot, 7200.0, 4, rng) for _ in range(3000)]
    assert spot.mean(np.array([7200.0]), np.array([4]))[0] == pytest.approx(np.mean(drawn), rel=0.03)
    assert np.mean(drawn) == pytest.approx(np.mean(events), rel=0.03)
    assert np.percentile(drawn, [10, 50, 90]) == pytest.approx(np.percentile(events, [10, 50, 90]), rel=0.06)


def test_very_many_interruptions_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an hour a part on nodes that live for minutes: hundreds of millions of attempts, in no memory."""
    rng = np.random.default_rng(3)
    singly = [_until(0.01, 90.0, 400, rng) for _ in range(2000)]
    monkeypatch.setattr("mlbench.plugins.prediction.model.MANY", 399)
    at_once = [_until(0.01, 90.0, 400, rng) for _ in range(2000)]
    assert np.mean(at_once) == pytest.approx(np.mean(singly), rel=0.003)
    assert np.std(at_once) == pytest.approx(np.std(singly), rel=0.08)


def test_spot_nodes_take_longer_and_cost_what_spot_costs(as_stored: Any) -> None:
    assert NODE.price
    node = NODE.model_copy(update={"price": NODE.price.model_copy(update={"usd_per_hour_spot": 0.6})})
    runs = World().measure(COUNTS, noise=0.02, luck=0.02, repeats=2)
    fit = model.fit(replace(runs, hardware=node))
    (calm,) = forecast(fit, [8])
    (spot,) = forecast(fit, [8], Target(spot=Spot(5.0, 60.0, 10)))
    assert spot.time_s.value > 1.01 * calm.time_s.value
    assert spot.time_s.low and spot.time_s.high and calm.time_s.high
    assert spot.time_s.low < spot.time_s.value < spot.time_s.high and spot.time_s.high > calm.time_s.high
    assert spot.cost_usd and spot.cost_usd.value == pytest.approx(8 * spot.time_s.value / 3600 * 0.6)
    with pytest.raises(UserError, check=as_stored):
        forecast(model.fit(World().measure(COUNTS)), [8], Target(spot=Spot(5.0, 60.0, 10)))


def test_a_price_older_than_a_year_is_no_advice() -> None:
    world = World(alpha=1e-3, volume=1e-3)
    some = forecast(model.fit(world.measure(COUNTS, repeats=3, noise=0.02)), [1, 2])
    assert old_price(NODE, date(2027, 11, 21)) is None
    old = old_price(NODE, date(2027, 11, 22))
    assert old and "2026-11-21" in old
    answers = {answer.question: answer for answer in advise(some, deadline=None, budget=5.0, old=old)}
    assert answers["fastest"].workers == 2
    for question in ("cheapest", "budget"):
        assert answers[question].workers is None and answers[question].sentence.endswith(
            f"no advice, the {old}."
        )


# --- another processor


@pytest.mark.parametrize("i", range(9))
def test_a_pair_of_processors_lies_in_the_interval_of_other_published_results(i: int) -> None:
    off = pairs()[i].peaks / pairs()[i].speedup  # measured over predicted time
    assert 1 / factor(pairs()[i].peaks) < off < factor(pairs()[i].peaks)


def test_the_pairs_are_those_of_the_tables() -> None:
    speedups = [140909 / 76438, 822024 / 447832, 82059 / 32942, 551599 / 214656, 83214 / 21860, 51057 / 8742]
    speedups += [1940000 / 807000, 809000 / 352000, 71.3 / 39.8]
    assert sorted(pair.speedup for pair in pairs()) == pytest.approx(sorted(speedups))
    amp, tf32 = 312 / 125, 156 / 15.7
    assert {round(pair.peaks, 9) for pair in pairs()} == {round(amp, 9), round(tf32, 9)}


def test_an_equal_peak_of_another_processor_is_no_certainty() -> None:
    fit = model.fit(World().measure(COUNTS, repeats=3, noise=0.01))
    twin = NODE.model_copy(update={"name": "twin", "network_us": 20_000.0})
    (same, other) = (forecast(fit, [1], Target(hardware=hardware))[0].time_s for hardware in (NODE, twin))
    assert same.high and same.low and other.high and other.low
    assert other.high / other.low > 3 > same.high / same.low
    assert other.high / other.value == pytest.approx(factor(1.0), rel=0.35)


# --- against what others published


A100 = "aws_p4d_24xlarge"


@pytest.mark.parametrize(
    ("task", "hardware", "workers", "minutes"),
    [
        ("gnmt", A100, 8, [7.81, 22.7]),  # MLPerf v0.7 to 24 BLEU; NVIDIA's example, 6 epochs
        ("gnmt", "aws_p3dn_24xlarge", 8, [18.5, 38.6]),
        ("gnmt", "aws_p3dn_24xlarge", 16, [8.56, 19.4]),
        ("gnmt", A100, 16, [4.94]),
        ("transformer", A100, 8, [7.84]),
        ("transformer", A100, 16, [4.35]),
        ("transformer", "aws_p3dn_24xlarge", 8, [18.81]),
    ],
)
def test_a_published_time_on_other_hardware_lies_in_the_interval_or_there_is_none(
    task: str, hardware: str, workers: int, minutes: list[float]
) -> None:
    fit = model.fit(check(runs_of(task)))
    try:
        (prediction,) = forecast(fit, [workers], Target(hardware=profile(hardware)))
    except UserError as refusal:
        assert (task, hardware, workers) != ("gnmt", A100, 8)
        assert "hardware." in str(refusal) or "bytes of gradients" in str(refusal)
        return
    assert prediction.time_s.low is not None and prediction.time_s.high is not None
    assert prediction.time_s.low < 60 * min(minutes) and 60 * max(minutes) < prediction.time_s.high
    assert prediction.time_s.high > 3 * prediction.time_s.low
    assert all(answer.workers is None for answer in advise([prediction], deadline=None, budget=None))


# --- what is fitted


def test_runs_with_a_caveat_are_never_fitted_and_are_named(snapshot: SnapshotAssertion) -> None:
    world = World(grows=True, batch=32)
    good = [as_record(world.run(k), seed=k) for k in (1, 2)]
    slow = replace(world.run(4), compute_s=1e6)
    bad = [
        as_record(slow, seed=11, oversubscribed=True),
        as_record(slow, seed=12, caveats=["the cost is not this hardware's"]),
        as_record(slow, seed=13, status="failed"),
        as_record(slow, seed=14, phases={}),
        as_record(slow, seed=15, restarts=[{"failures": {0: "killed"}}]),
    ]
    runs = from_records([*good, *bad], title="study")
    assert runs.counts == [1, 2]
    assert runs.left_out == snapshot
    with pytest.raises(UserError, match="at 1 worker, 5 runs"):
        check(from_records([good[0], *bad], title="study"))


def test_runs_on_a_slow_node_and_repeats_of_a_seed_are_never_fitted() -> None:
    world = World(grows=True, batch=32)

    def ran(k: int, seed: int, rate: float, number: int = 0) -> Record:
        node = {"hostname": "here", "usable_cpus": 2, "threads_per_worker": 1}
        node["calibration"] = {"cpu_gemm_flops_per_s": rate}
        return as_record(world.run(k), seed=seed, key=f"{k}", nodes=[node], run_id=f"{k}-{seed}-{number}")

    quiet = [ran(k, seed, 2e11) for k in (1, 2) for seed in range(3)]
    runs = from_records([*quiet, ran(2, 3, 1e11), ran(1, 0, 2e11, number=1)], title="study")
    assert sorted(run.workers for run in runs.runs) == [1, 1, 1, 2, 2, 2]
    repeated, slow = sorted(runs.left_out)
    assert repeated.startswith("1-0-") and repeated.endswith("(goal_reached)")
    assert slow.startswith("2-3-0 (2 workers)") and "50 % slower" in slow


def test_hardware_and_price_are_those_of_the_runs_that_are_fitted() -> None:
    world = World(grows=True, batch=32)
    caveat = {"caveats": ["the node has fewer CPUs than its profile states"]}
    bad = [as_record(world.run(k), "hardware=gcp_n1_standard_4", seed=k, **caveat) for k in (1, 2)]
    good = [as_record(world.run(k), seed=10 + k) for k in (1, 2)]
    runs = from_records([*bad, *good], title="study")
    assert runs.counts == [1, 2] and len(runs.left_out) == 2
    assert runs.hardware.name == "local" and runs.hardware.price is None


def test_a_record_becomes_the_run_that_it_was_made_of() -> None:
    run = World(grows=True, batch=32, hidden=0.5).run(4)
    (result,) = from_records([as_record(run)], title="study").runs
    for name, value in vars(run).items():
        assert getattr(result, name) == pytest.approx(value if name != "validations" else 1, rel=1e-3)
    alone = World(grows=True, batch=32).run(1)
    (result,) = from_records(
        [as_record(replace(alone, communication_s=1.0, compute_s=alone.compute_s - 1.0))], title="study"
    ).runs
    assert (result.communication_s, result.overlapped_s) == (0.0, 0.0)  # one worker sends nothing
    assert result.compute_s == pytest.approx(alone.compute_s)


@pytest.mark.parametrize("grows", [True, False])
def test_runs_that_tell_no_epochs_are_predicted_alike(*, grows: bool) -> None:
    world = World(grows=grows, batch=32 if grows else 1024, epochs=(6.0, 1e-3))
    runs = [as_record(world.run(k), seed=k) for k in (1, 2, 4)]
    untold = [run.model_copy(update={"epochs": 0.0}) for run in runs]
    told, silent = (from_records(several, title="study") for several in (runs, untold))
    predicted = [model.fit(several).predict(np.array([8.0])).time for several in (told, silent)]
    assert predicted[1] == pytest.approx(predicted[0], rel=1e-3)
    most = max(run.samples for run in runs)
    assert len(silent.notes) == 1 and f"{most:,} samples" in silent.notes[0]
    empty = from_records([run.model_copy(update={"samples": 0}) for run in untold], title="study")
    assert not empty.runs and "lacks its samples" in empty.left_out[0]


def test_missed_goals_give_no_epochs_but_their_seconds_count(as_stored: Any) -> None:
    world = World()
    runs = world.measure((1, 2, 4))
    missed = replace(world.run(4), reached=False, epochs=30.0, steps=5 * world.run(4).steps)
    missed = replace(missed, compute_s=5 * missed.compute_s, samples=5 * missed.samples)
    both = replace(runs, runs=(*runs.runs, missed))
    assert model.fit(both).parts["epochs"].theta[0] == pytest.approx(6.0)
    assert both.times(4)[1] == math.inf
    assert any("1 of 2 runs missed" in sentence for sentence in sentences.basis(model.fit(both)))
    never = replace(runs, runs=tuple(replace(run, reached=False) for run in runs.runs))
    with pytest.raises(UserError, check=as_stored):
        check(never)


def test_a_batch_that_follows_no_rule_is_refused(as_stored: Any) -> None:
    runs = World().measure((1, 4))
    odd = replace(runs.runs[1], samples=2 * runs.runs[1].samples)
    with pytest.raises(UserError, check=as_stored):
        check(replace(runs, runs=(runs.runs[0], odd)))
    runs = World(grows=True, batch=32).measure((1, 2))
    short = replace(runs.runs[1], samples=0.93 * runs.runs[1].samples)  # the last batch
    assert check(replace(runs, runs=(runs.runs[0], short))).grows


# --- advice


def row(workers: int, hours: float, usd: float, *, ratio: float | None = None, sure: float = 1.5) -> Forecast:
    """Return a forecast; `ratio` is the upper end of its time over that of the next smaller count."""
    return Forecast(
        workers=workers,
        measured_s=None,
        extrapolated=True,
        time_s=PredictedInterval(3600 * hours, 3600 * hours / sure, 3600 * hours * sure),
        time_ratio=None if ratio is None else PredictedInterval(ratio - 0.2, ratio - 0.4, ratio),
        speedup=PredictedInterval(1.0),
        cost_usd=PredictedInterval(usd, usd / sure, usd * sure),
        epochs=1.0,
        step_s=1.0,
        communication_share=0.0,
    )


ROWS = [
    row(1, 10, 10),
    row(2, 6, 12, ratio=0.7),
    row(4, 4, 16, ratio=0.8),
    row(8, 3.9, 31.2, ratio=1.1),
    row(16, 3.0, 72, ratio=0.9),
]


def chosen(deadline: float | None = None, budget: float | None = None) -> dict[str, int | None]:
    return {answer.question: answer.workers for answer in advise(ROWS, deadline=deadline, budget=budget)}


def test_advice_for_each_question() -> None:
    assert chosen() == {"fastest": 4, "cheapest": 1}  # 8 are not shown to be faster than 4
    assert chosen(deadline=7 * 3600.0)["deadline"] == 2
    assert chosen(deadline=3.5 * 3600.0)["deadline"] is None
    assert chosen(budget=20.0)["budget"] == 4
    assert chosen(budget=5.0)["budget"] is None


def test_no_advice_where_the_runs_do_not_show_that_two_workers_are_faster(
    snapshot: SnapshotAssertion,
) -> None:
    (only,) = advise([row(1, 10, 10), row(2, 6, 12, ratio=1.0)], deadline=None, budget=None)
    assert only.workers is None and only.sentence == snapshot
    slower = replace(row(2, 12, 24, ratio=1.4), time_ratio=PredictedInterval(1.2, 1.1, 1.4))
    (first, *_) = advise([row(1, 10, 10), slower], deadline=None, budget=None)
    assert first.workers == 1 and first.sentence == snapshot
    unknown = replace(row(2, 6, 12, ratio=0.8), time_ratio=PredictedInterval(0.6))
    assert advise([row(1, 10, 10), unknown], deadline=None, budget=None)[0].workers is None


def test_an_interval_wider_than_a_factor_of_three_is_no_advice() -> None:
    loose = [row(1, 10, 10, sure=1.8), row(2, 6, 12, ratio=0.7, sure=1.8)]
    answers = advise(loose, deadline=7 * 3600.0, budget=None)
    assert [answer.workers for answer in answers] == [None, None, None]
    assert all("factor of 3" in answer.sentence for answer in answers)


def test_the_fewest_workers_meet_a_deadline_where_there_is_no_price() -> None:
    unpriced = [replace(row, cost_usd=None) for row in ROWS]
    assert advise(unpriced, deadline=5 * 3600.0, budget=None)[-1].workers == 4
    with pytest.raises(UserError, match="needs a price"):
        advise(unpriced, deadline=None, budget=5.0)


# --- the published runs


runs_of = published_runs.measurements


@pytest.mark.parametrize("task", ["gnmt", "transformer", "resnet20"])
def test_published_runs_keep_their_totals(task: str) -> None:
    from mlbench.analysis.published import load

    totals = {
        row.workers: row.value
        for row in load(task, study="mlbench-2021-runs")
        if row.metric == "train_time" and row.label == "all-reduce" and row.backend in ("nccl", "all")
    }
    for run in runs_of(task).runs:
        assert run.total_s == pytest.approx(totals[run.workers])


def test_published_epochs_and_prices() -> None:
    assert [run.epochs for run in runs_of("gnmt").runs] == pytest.approx([4.3, 3.9, 4.3, 4.3, 4.3])
    assert [run.epochs for run in runs_of("transformer").runs] == pytest.approx([2.9, 3.3, 2.9, 2.9, 2.9])
    price = runs_of("gnmt").hardware.price
    assert price is not None and price.usd_per_hour == pytest.approx(0.5592)


@pytest.mark.parametrize("task", ["gnmt", "transformer"])
def test_the_documented_errors_are_those_of_the_model(task: str) -> None:
    runs = runs_of(task)
    fit = model.fit(check(runs.only([1, 2, 4])))
    left_out = leave_one_out(runs.only([1, 2, 4]))
    said = sentences.holdouts(left_out, [compare(fit, runs.only([k])) for k in (8, 16)])
    documented = re.sub(r"\s+", " ", (ROOT / "docs" / "prediction-model.md").read_text())
    assert all(sentence in documented for sentence in said)


@pytest.mark.parametrize("task", ["gnmt", "transformer"])
def test_published_runs_that_were_not_fitted_lie_in_their_intervals(task: str) -> None:
    runs = runs_of(task)
    for prediction in forecast(model.fit(runs.only([1, 2, 4])), [8, 16]):
        (time,) = runs.times(prediction.workers)
        assert prediction.time_s.low is not None and prediction.time_s.high is not None
        assert prediction.time_s.low < time < prediction.time_s.high

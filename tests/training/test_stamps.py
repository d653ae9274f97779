"""Sums of stamped steps, worked out by hand."""

from array import array
from collections.abc import Iterator
from itertools import pairwise

import pytest
from ranks import RankPool
from test_timer import Clock, batch, gpu_timer

from mlbench.record.phases import PhaseTimes
from mlbench.training import arrivals
from mlbench.training.stamps import Arrivals, StepTotals
from mlbench.training.worker import Worker


def stamps(begin: float, *, first: bool) -> list[tuple[str, object]]:
    """A step of 1 s: forward 0.4, backward to 0.9 with a bucket launched at 0.8 and one in flight before."""
    at = begin
    return [
        ("first" if first else "", at),
        ("forward", at + 0.4),
        ("launch", at + 0.5),
        ("launch", at + 0.8),
        ("reduced", (at + 0.5, at + 0.7)),
        ("reduced", (at + 0.8, at + 0.9)),
        ("backward", at + 0.9),
        ("metrics", at + 1.0),
    ]


def test_overlapped_communication_of_sampled_steps_stands_for_all_like_every_phase() -> None:
    """A first step and 2 stamped ones of 10: 0.2 s overlapped in each of 11 steps."""
    totals = StepTotals()
    totals.add(stamps(0.0, first=True))
    totals.add(stamps(5.0, first=False))
    totals.add(stamps(9.0, first=False))
    times = PhaseTimes(seconds=11.0)
    arrivals = totals.fill(times)
    assert times.overlapped_communication == pytest.approx(11 * 0.2)
    assert times.phases["forward"] == pytest.approx(11 * 0.4)
    assert times.phases["transfer"] == pytest.approx(11 * 0.1)
    assert list(arrivals.weights) == pytest.approx([1.0, 5.0, 5.0])
    assert times.stamped_steps == 3


def test_communication_after_the_step_ends_with_a_transfer_of_its_own() -> None:
    """Of a step of 1 s: optimizer to 0.6 and, up to the launch, to 0.65; transfer to 0.85; then metrics."""
    totals = StepTotals()
    after = [("launch", 0.65), ("reduced", (0.65, 0.85)), ("transfer", 0.85), ("metrics", 1.0)]
    totals.add([("first", 0.0), ("forward", 0.2), ("backward", 0.5), ("optimizer", 0.6), *after])
    times = PhaseTimes(seconds=1.0)
    result = totals.fill(times)
    expected = {"forward": 0.2, "backward": 0.3, "optimizer": 0.15, "transfer": 0.2, "metrics": 0.15}
    assert {name: s for name, s in times.phases.items() if s} == pytest.approx(expected)
    assert list(result.launched) == [0.65] and list(result.exposed) == pytest.approx([0.2])
    assert times.overlapped_communication == 0.0


def test_a_gpu_is_waited_for_before_the_calibration_reads_its_stamps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, drained = Clock(), []
    timer = gpu_timer(monkeypatch, clock, drained)
    timer.start()
    for _ in range(3):
        batch(timer, clock)
    assert not drained
    assert timer.median_step_s() == pytest.approx(2.05, rel=0.01)
    assert drained == [clock.now]


# Of three steps, s: when each of two ranks launched its last bucket, and what was exposed from there on.
LAUNCHED = ([1.0, 10.0, 20.5], [1.3, 10.0, 20.0])
EXPOSED = ([0.7, 0.2, 0.4], [0.4, 0.2, 0.25])
WEIGHT = 2.0  # steps that a stamped one stands for


def split_up(worker: Worker, cuts: list[int]) -> list[tuple[dict[str, float], list[tuple[int, int, float]]]]:
    """Return phases and lateness of each interval of one report; `cuts` are the steps at which they begin."""
    measured = []
    for begin, end in pairwise([*cuts, 3]):
        launched = array("d", LAUNCHED[worker.rank][begin:end])
        exposed = array("d", EXPOSED[worker.rank][begin:end])
        times = PhaseTimes()
        times.phases["transfer"] = WEIGHT * sum(exposed)
        measured.append((times, Arrivals(launched, exposed, array("d", [WEIGHT] * (end - begin)))))
    arrivals.split(measured, ranks=2, to_common=lambda at: at, group=worker.control)
    return [
        (times.phases, [(block.steps, block.last, block.median_s) for block in times.lateness])
        for times, _ in measured
    ]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as ranks:
        yield ranks


def test_exposed_communication_is_split_by_hand(pool: RankPool) -> None:
    """Rank 0 waits 0.3 s in the first step, rank 1 0.5 s in the last, of which 0.25 s is exposed."""
    ((first, late_0),), ((second, late_1),) = pool.run(split_up, [0])
    assert first["wait"] == pytest.approx(WEIGHT * 0.3)
    assert first["transfer"] == pytest.approx(WEIGHT * (0.4 + 0.2 + 0.4))
    assert second["wait"] == pytest.approx(WEIGHT * 0.25)
    assert second["transfer"] == pytest.approx(WEIGHT * (0.4 + 0.2))
    for result, expected in ((late_0, (-0.3, 0.0, 0.5)), (late_1, (0.3, 0.0, -0.5))):
        assert [steps for steps, _, _ in result] == [1, 1, 1]
        assert [median for _, _, median in result] == pytest.approx(expected)
    assert [last for _, last, _ in late_0] == [0, 1, 1] and [last for _, last, _ in late_1] == [1, 1, 0]


def test_each_validation_of_a_report_has_the_waits_of_its_own_steps(pool: RankPool) -> None:
    """Short epochs share a report: here one of the first step, one without a step, one of the other two."""
    first, second = pool.run(split_up, [0, 1, 1])
    assert [phases["wait"] for phases, _ in first] == pytest.approx([WEIGHT * 0.3, 0.0, 0.0])
    assert [phases["wait"] for phases, _ in second] == pytest.approx([0.0, 0.0, WEIGHT * 0.25])
    transfers = [phases["transfer"] for phases, _ in first]
    assert transfers == pytest.approx([WEIGHT * 0.4, 0.0, WEIGHT * 0.6])
    late = [[round(median, 9) for _, _, median in blocks] for _, blocks in first]
    assert late == [[-0.3], [], [0.0, 0.5]]
    assert [[last for _, last, _ in blocks] for _, blocks in second] == [[1], [], [1, 0]]

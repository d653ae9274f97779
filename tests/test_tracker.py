"""The clock with a clock of our own: what is counted where."""

from collections.abc import Callable

import pytest

from mlbench.tracker import PHASES, Tracker, _busy


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def run(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tracker(clock: Clock) -> Tracker:
    return Tracker(now=clock, wall_now=clock)


def batch(tracker: Tracker, clock: Clock, *, launches: tuple[float, ...] = ()) -> None:
    """One batch of 0.1 data, 0.2 forward, 0.3 loss, 1.0 backward, 0.4 optimizer, 0.05 metrics.

    Buckets are launched at `launches` seconds after backward began, and arrive 0.25 s later.
    """
    for phase, seconds in (("data_wait", 0.1), ("forward", 0.2), ("loss", 0.3)):
        clock.run(seconds)
        tracker.mark(phase)
    begin = clock.now
    flights = []
    for launch in launches:
        clock.now = begin + launch
        flights.append((tracker.launched(), begin + launch + 0.25))
    for launch, arrival in flights:
        clock.now = arrival
        tracker.arrived(launch)
    clock.now = begin + 1.0
    tracker.mark("backward")
    clock.run(0.4)
    tracker.mark("optimizer")
    clock.run(0.05)
    tracker.end_batch(8)


def test_phases_add_up_to_the_batch(tracker: Tracker, clock: Clock) -> None:
    tracker.start()
    tracker.resume()
    begin = clock.now
    for _ in range(3):
        batch(tracker, clock, launches=(0.2, 0.7))
    segment = tracker.take()
    assert sum(segment.phases.values()) == pytest.approx(clock.now - begin)
    assert sum(segment.batch_s) == pytest.approx(clock.now - begin)
    assert segment.batches == 3 and segment.samples == 24
    assert set(segment.phases) == set(PHASES)


def test_communication_after_the_last_bucket_is_exposed_and_before_it_overlapped(
    tracker: Tracker, clock: Clock
) -> None:
    tracker.resume()
    batch(tracker, clock, launches=(0.2, 0.3, 0.7))
    segment = tracker.take()
    assert segment.phases["backward"] == pytest.approx(0.7)
    assert segment.phases["communication"] == pytest.approx(0.3)
    # 0.2..0.45 and 0.3..0.55 together are 0.35 s; the third bucket flew after the last launch
    assert segment.overlapped_communication == pytest.approx(0.35)


def test_without_buckets_nothing_is_communication(tracker: Tracker, clock: Clock) -> None:
    tracker.resume()
    batch(tracker, clock)
    segment = tracker.take()
    assert segment.phases["communication"] == 0
    assert segment.phases["backward"] == pytest.approx(1.0)


def test_time_spent_in_validation_is_in_no_phase_but_on_the_clock(tracker: Tracker, clock: Clock) -> None:
    tracker.start()
    tracker.resume()
    batch(tracker, clock)
    with tracker.outside("validation"):
        clock.run(7)
    tracker.resume()
    batch(tracker, clock)
    segment = tracker.take()
    assert segment.outside == {"validation": pytest.approx(7)}
    assert sum(segment.phases.values()) == pytest.approx(2 * 2.05)
    assert tracker.elapsed() == pytest.approx(7 + 2 * 2.05)


def test_a_restart_keeps_the_first_start(clock: Clock) -> None:
    clock.now = 500.0
    tracker = Tracker(now=clock, wall_now=clock)
    tracker.start(started_at=440.0)
    clock.run(5)
    assert tracker.elapsed() == pytest.approx(65)
    assert tracker.started_at == 440.0


def test_switched_off_it_takes_no_stamps(clock: Clock) -> None:
    tracker = Tracker(instrument=False, now=clock, wall_now=clock)
    tracker.resume()
    tracker.mark("forward")
    tracker.end_batch(4)
    segment = tracker.take()
    assert segment.samples == 4 and sum(segment.phases.values()) == 0


def test_take_starts_anew(tracker: Tracker, clock: Clock) -> None:
    tracker.resume()
    batch(tracker, clock)
    tracker.take()
    assert tracker.take().batches == 0


def test_repeats_time_the_operation_and_neither_its_preparation_nor_the_barrier(
    tracker: Tracker, clock: Clock
) -> None:
    order: list[str] = []

    def step(name: str, *seconds: float) -> Callable[[], None]:
        left = iter(seconds)

        def run() -> None:
            order.append(name)
            clock.run(next(left))

        return run

    times = tracker.time_repeats(
        step("operation", 0.5, 0.25, 2.0),
        3,
        prepare=step("prepare", 7, 8, 9),
        barrier=step("barrier", 30, 40, 50),
    )
    assert times == pytest.approx([0.5, 0.25, 2.0])
    assert order == ["prepare", "barrier", "operation"] * 3


@pytest.mark.gpu
def test_repeats_on_a_gpu_last_as_long_as_the_kernels_and_not_as_their_launch() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    matrix = torch.randn(4096, 4096, device="cuda")
    tracker = Tracker("cuda")
    one, three = (
        min(tracker.time_repeats(lambda n=n: [matrix @ matrix for _ in range(n)], 5)) for n in (10, 30)
    )
    assert three == pytest.approx(3 * one, rel=0.2)


@pytest.mark.parametrize(
    ("intervals", "until", "length"),
    [
        ([], 9.0, 0.0),
        ([(0, 2), (1, 3)], 9.0, 3.0),
        ([(0, 2), (4, 6)], 5.0, 3.0),
        ([(0, 9), (1, 2)], 9.0, 9.0),
    ],
)
def test_union_of_intervals(intervals: list, until: float, length: float) -> None:
    assert _busy(intervals, until=until) == pytest.approx(length)

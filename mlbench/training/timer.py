"""The one clock: phases of a step, time outside the steps, and the wall clock of the run.

Only mlbench/clock.py reads time. From `start` on, every moment belongs to the steps or to the time outside
them (loading, validation, report). So both add up to the elapsed time. A phase ends when the next one begins,
so the phases add up to the step. On a GPU a stamp is a CUDA event on the current stream, read when the device
has passed it. The host clock would only show when a kernel was queued.

Steps shorter than SHORT_STEP_S are not all stamped. Of every `stamp_every` steps one is, drawn at random and
the same on all ranks, so that no rhythm of the steps hides. Their shares of the phases are scaled to the time
that the steps took, which is measured whole. The first step after time outside is always stamped and counts
for itself alone, because it waits for an epoch's set-up.
"""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mlbench import clock
from mlbench.record.phases import PhaseTimes, percentiles
from mlbench.training.stamps import Arrivals, Stamps

HEARTBEAT_S = 1.0  # s between two heartbeats while a run trains
CALIBRATION_STEPS = 50  # all stamped. Their median duration decides how many are from then on
SHORT_STEP_S = 1e-3  # s, as the stamps of a step and their sums take some 10 us
SAMPLE_S = 4e-3  # s from one stamped step to the next, on average, if steps are short


class RunClock:
    """Measures since when a run trains.

    - now, wall_now: clocks. clock_id names the one behind `now`, the same for all processes that share it.
    - started: when it began on `now`. started_at: likewise on `wall_now`, s since 1970.
    """

    def __init__(self, now: Callable[[], float], wall_now: Callable[[], float], clock_id: str | None) -> None:
        self.now, self.wall_now = now, wall_now
        self.clock_id = clock_id or clock.host_clock_id()
        self.started, self.started_at = now(), 0.0

    def start(self, *, started: float | None = None, started_at: float | None = None) -> float:
        """Start the clock. Return now.

        After a restart both give the moment when the run started, on this clock and on the wall clock (s).
        """
        now = self.now()
        self.started = now if started is None else started
        self.started_at = self.wall_now() if started_at is None else started_at
        return now

    def elapsed(self) -> float:
        """Return the seconds since `start`. This clock never pauses."""
        return self.now() - self.started


class StepSampler:
    """Draws which steps are stamped: one of every `every`, the same on all ranks.

    - place: steps ended. decide_at: the place at which to decide again.
    """

    def __init__(self) -> None:
        self.every = 1
        self.place = 0
        self.decide_at = math.inf
        self._chosen = self._block = 0  # the next to stamp, and the first of those that it is drawn from
        self._random = random.Random(0)

    def one_of(self, every: int) -> None:
        """Stamp from the next step on one of so many."""
        self.every = every
        self._block = self.decide_at = self.place + 1
        self._chosen = self._block + self._random.randrange(every)

    def decide_next(self) -> None:
        """Decide again at the end of the present step, which is stamped whatever was drawn."""
        if self.every > 1:
            self.decide_at = self.place

    def decide(self) -> bool:
        """Return whether the step at `place` is stamped."""
        while self._chosen < self.place:
            self._block += self.every
            self._chosen = self._block + self._random.randrange(self.every)
        self.decide_at = self._chosen + (self.place == self._chosen)
        return self.place == self._chosen


class PhaseTimer(RunClock):
    """Measures one rank of one run.

    - device: e.g. "cpu" or "cuda:1".
    - enabled: (default true) false takes no stamps inside the steps, to measure what stamps cost.
    - end_phase(phase): end `phase` here. It lasted from the stamp before. Look it up again in every step.
    - stamping: whether the present step is stamped.
    - mean(seconds): the mean over all ranks, so that all of them choose one `stamp_every`.
    - heartbeat(): called in a step about once a second.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        enabled: bool = True,
        now: Callable[[], float] = clock.monotonic,
        wall_now: Callable[[], float] = clock.wall,
        clock_id: str | None = None,
    ) -> None:
        super().__init__(now, wall_now, clock_id)
        self.enabled = self.stamping = enabled
        self.mean: Callable[[float], float] = lambda seconds: seconds
        self.heartbeat: Callable[[], object] = lambda: None
        self._stamps = Stamps(device, now)
        self._draw = StepSampler()
        self._times = PhaseTimes()  # since the last `pop`
        self._inside_since = self.started
        self._first_inside = self._first = 0  # places: since then, and since the last `pop`
        self._last_heartbeat = self.started
        self._end_phase = self._phase_ender()
        self.end_phase = self._end_phase

    @property
    def stamp_every(self) -> int:
        """One of how many steps is stamped."""
        return self._draw.every

    def start(self, *, started: float | None = None, started_at: float | None = None) -> float:
        """Start the clock of time_to_accuracy: the next thing is the first touch of training data."""
        now = super().start(started=started, started_at=started_at)
        self._enter_steps(now)
        return now

    def end_step(self, samples: int) -> None:
        """End the step and its last phase, metrics. Count this rank's samples."""
        if self.stamping or not self.enabled:  # of short steps one in many: looking at the clock takes time
            if self._stamps.steps == CALIBRATION_STEPS and self.enabled and self._draw.every == 1:
                self.sample(self.mean(self.median_step_s()))
            if self.heartbeat_due():
                self.heartbeat()
                if self.stamping:
                    self._stamps.anchor()
        self._times.samples += samples
        draw = self._draw
        draw.place += 1
        if self.stamping:
            self._stamps.step_ends()
            self.end_phase("metrics")
        if draw.place >= draw.decide_at:
            self._choose()

    def bucket_launched(self) -> Any:
        """Stamp that a bucket of gradients is complete and handed to the backend."""
        stamp = self._stamps.now()
        self._stamps.kept.append(("launch", stamp))
        return stamp

    def bucket_reduced(self, launch: Any) -> None:
        """Stamp that the bucket launched at `launch` has been reduced."""
        self._stamps.kept.append(("reduced", (launch, self._stamps.now())))

    def heartbeat_due(self) -> bool:
        """Return true about once a second."""
        now = self.now()
        if now - self._last_heartbeat < HEARTBEAT_S:
            return False
        self._last_heartbeat = now
        return True

    def median_step_s(self) -> float:
        """Return the median duration (s) of the steps stamped since the last `pop`. Waits for the device."""
        self._stamps.resolve()
        return percentiles([self._stamps.totals.step_s]).get("p50", math.inf)

    def sample(self, step_s: float) -> None:
        """Stamp from here on one of so many steps of `step_s` seconds as last SAMPLE_S, if they are short."""
        if step_s < SHORT_STEP_S:
            self._draw.one_of(math.ceil(SAMPLE_S / step_s))

    @contextmanager
    def outside_steps(self, name: str) -> Iterator[None]:
        """Measure time between steps: loading, validation, report. The device is waited for."""
        begin = self._leave_steps()
        try:
            yield
        finally:
            self._stamps.wait()
            end = self.now()
            self._times.outside[name] = self._times.outside.get(name, 0.0) + end - begin
            self._enter_steps(end)

    def benchmark(
        self,
        operation: Callable[[], object],
        repeats: int,
        *,
        prepare: Callable[[], object] = lambda: None,
        barrier: Callable[[], object] = lambda: None,
    ) -> list[float]:
        """Return the seconds of each of `repeats` calls of `operation`, for what is not a training step.

        Before each call, and not timed, come `prepare`, a wait until the device is idle, and `barrier`, so
        that all ranks begin together. What `barrier` queues on a GPU is passed before the time begins.
        """
        stamp, pairs = self._stamps.now, []
        for _ in range(repeats):
            prepare()
            self._stamps.wait()
            barrier()
            begin = stamp()
            operation()
            pairs.append((begin, stamp()))
        return self._stamps.between(pairs)

    def pop(self) -> tuple[PhaseTimes, Arrivals]:
        """Return what was measured since the last call, and when this rank's gradients were complete.

        All exposed communication counts as transfer until `arrivals.split` has the other ranks' stamps.
        """
        now = self._leave_steps()
        times, self._times = self._times, PhaseTimes()
        times.steps, self._first = self._draw.place - self._first, self._draw.place
        times.stamp_every = self.stamp_every
        times.elapsed = now - self.started
        arrivals = self._stamps.fill(times)
        self._enter_steps(now)
        return times, arrivals

    def _enter_steps(self, now: float) -> None:
        self._inside_since, self._first_inside = now, self._draw.place
        if self.enabled:
            self.stamping, self.end_phase = True, self._end_phase
            self._draw.decide_next()
            self._stamps.first(now)

    def _leave_steps(self) -> float:
        """Return when the time outside begins: now, or when it ended, if no step was made since."""
        self._stamps.wait()
        now = self.now()
        if self._draw.place == self._first_inside:
            self._stamps.drop()
            return self._inside_since
        self._times.seconds += now - self._inside_since
        self._stamps.resolve()
        return now

    def _choose(self) -> None:
        """Decide whether the next step is stamped."""
        if self._draw.decide():
            self.stamping, self.end_phase = True, self._end_phase
            self._stamps.kept.append(("", self._stamps.now()))
        elif self.stamping:
            self.stamping, self.end_phase = False, _nothing

    def _phase_ender(self) -> Callable[[str], None]:
        """Return `end_phase`. It is a closure, called seven times a step, and a step may last 80 us."""
        if not self.enabled:
            return _nothing
        stamp, append = self._stamps.now, self._stamps.kept.append

        def end_phase(phase: str) -> None:
            append((phase, stamp()))

        return end_phase


def _nothing(phase: str) -> None:
    """End no phase."""

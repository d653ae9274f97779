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
from mlbench.training.stamps import Arrivals, DeviceClock, StepTotals

HEARTBEAT_S = 1.0  # s between two heartbeats while a run trains
RESOLVE_EVERY = 1_000  # stamped steps between two sums of stamps, which bounds how many of them are kept
CALIBRATION_STEPS = 50  # all stamped. Their median duration decides how many are from then on
SHORT_STEP_S = 1e-3  # s, as the stamps of a step and their sums take some 10 us
SAMPLE_S = 4e-3  # s from one stamped step to the next, on average, if steps are short
# The kind of a stamp, and its time. Kinds: a phase that ends, a begin of a step ("", or "first" after time
# outside), "launch", "reduced" and "anchor".
Stamp = tuple[str, Any]


class PhaseTimer:
    """Measures one rank of one run.

    - device: e.g. "cpu" or "cuda:1".
    - enabled: (default true) false takes no stamps inside the steps, to measure what stamps cost.
    - end_phase(phase): end `phase` here. It lasted from the stamp before. Look it up again in every step.
    - stamping: whether the present step is stamped. stamp_every: one of how many steps is.
    - mean(seconds): the mean over all ranks, so that all of them choose one `stamp_every`.
    - heartbeat(): called in a step about once a second.
    - now, wall_now: clocks. clock_id names the one behind `now`, the same for all processes that share it.
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
        self.enabled = self.stamping = enabled
        self.stamp_every = 1
        self.mean: Callable[[float], float] = lambda seconds: seconds
        self.heartbeat: Callable[[], object] = lambda: None
        self.now, self.wall_now = now, wall_now
        self.clock_id = clock_id or clock.host_clock_id()
        self.started_at = 0.0  # wall clock, s
        self.started = now()
        self._device = device
        self._cuda = device.startswith("cuda")
        self._device_clock = _device_clock(device, now) if self._cuda else None
        # Without a reference to this timer: it is to be freed at once, and not in a fork, which has no CUDA.
        self._stamp: Callable[[], Any] = _events(self._device_clock) if self._device_clock else now
        self._stamps: list[Stamp] = []
        self._older = 0  # how many stamps lie before the last boundary of RESOLVE_EVERY
        self._times = PhaseTimes()
        self._totals = StepTotals()
        self._draw = random.Random(0)
        # Steps ended, the next to stamp, the first of the `stamp_every` that it is drawn from.
        self._place = self._chosen = self._block = 0
        self._decide_at = math.inf  # the place at which to choose again
        self._inside_since = self.started
        self._first_inside = self._first = 0  # places: since then, and since the last `pop`
        self._samples = 0  # since the last `pop`
        self._stamped = 0
        self._last_heartbeat = self.started
        self._end_phase = self._phase_ender()
        self.end_phase = self._end_phase

    def start(self, *, started: float | None = None, started_at: float | None = None) -> None:
        """Start the clock of time_to_accuracy: the next thing is the first touch of training data.

        After a restart both give the moment when the run started, on this clock and on the wall clock (s).
        """
        now = self.now()
        self.started = now if started is None else started
        self.started_at = self.wall_now() if started_at is None else started_at
        self._enter_steps(now)

    def elapsed(self) -> float:
        """Return the seconds since `start`. This clock never pauses."""
        return self.now() - self.started

    def end_step(self, samples: int) -> None:
        """End the step and its last phase, metrics. Count this rank's samples."""
        if self.stamping or not self.enabled:  # of short steps one in many: looking at the clock takes time
            if self._stamped == CALIBRATION_STEPS and self.enabled and self.stamp_every == 1:
                self.sample(self.mean(self.median_step_s()))
            if self.heartbeat_due():
                self.heartbeat()
                if self._device_clock and self.stamping and (anchor := self._device_clock.anchor()):
                    self._stamps.append(("anchor", anchor))
        self._samples += samples
        self._place = position = self._place + 1
        if self.stamping:
            self._stamped += 1
            if self._stamped % RESOLVE_EVERY == 0:
                self._resolve_older()
            self.end_phase("metrics")
        if position >= self._decide_at:
            self._choose()

    def bucket_launched(self) -> Any:
        """Stamp that a bucket of gradients is complete and handed to the backend."""
        stamp = self._stamp()
        self._stamps.append(("launch", stamp))
        return stamp

    def bucket_reduced(self, launch: Any) -> None:
        """Stamp that the bucket launched at `launch` has been reduced."""
        self._stamps.append(("reduced", (launch, self._stamp())))

    def heartbeat_due(self) -> bool:
        """Return true about once a second."""
        now = self.now()
        if now - self._last_heartbeat < HEARTBEAT_S:
            return False
        self._last_heartbeat = now
        return True

    def median_step_s(self) -> float:
        """Return the median duration (s) of the steps stamped since the last `pop`. Waits for the device."""
        self._resolve_all()
        return percentiles([self._totals.step_s]).get("p50", math.inf)

    def sample(self, step_s: float) -> None:
        """Stamp from here on one of so many steps of `step_s` seconds as last SAMPLE_S, if they are short."""
        if step_s < SHORT_STEP_S:
            self.stamp_every = math.ceil(SAMPLE_S / step_s)
            self._block = self._decide_at = self._place + 1
            self._chosen = self._block + self._draw.randrange(self.stamp_every)

    @contextmanager
    def outside_steps(self, name: str) -> Iterator[None]:
        """Measure time between steps: loading, validation, report. The device is waited for."""
        begin = self._leave_steps()
        try:
            yield
        finally:
            if self._cuda:
                self._wait()
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
        stamps = []
        for _ in range(repeats):
            prepare()
            if self._cuda:
                self._wait()
            barrier()
            begin = self._stamp()
            operation()
            stamps.append((begin, self._stamp()))
        if not self._cuda:
            return [end - begin for begin, end in stamps]
        self._wait()
        return [begin.elapsed_time(end) / 1e3 for begin, end in stamps]

    def pop(self) -> tuple[PhaseTimes, Arrivals]:
        """Return what was measured since the last call, and when this rank's gradients were complete.

        All exposed communication counts as transfer until `arrivals.split` has the other ranks' stamps.
        """
        now = self._leave_steps()
        times, self._times = self._times, PhaseTimes()
        times.steps, self._first = self._place - self._first, self._place
        times.samples, self._samples = self._samples, 0
        times.stamp_every = self.stamp_every
        times.elapsed = now - self.started
        times.clock_error_s = self._device_clock.error_s if self._device_clock else 0.0
        arrivals = self._totals.fill(times)
        self._totals = StepTotals()
        self._enter_steps(now)
        return times, arrivals

    def _enter_steps(self, now: float) -> None:
        self._inside_since, self._first_inside = now, self._place
        if self.enabled:
            self.stamping, self.end_phase = True, self._end_phase
            if self.stamp_every > 1:
                self._decide_at = self._place
            self._stamps.append(("first", (self._stamp(), now) if self._cuda else now))

    def _leave_steps(self) -> float:
        """Return when the time outside begins: now, or when it ended, if no step was made since."""
        if self._cuda:
            self._wait()
        now = self.now()
        if self._place == self._first_inside:
            del self._stamps[:]
            self._older = 0
            return self._inside_since
        self._times.seconds += now - self._inside_since
        self._resolve_all()
        return now

    def _choose(self) -> None:
        """Decide whether the step at `_place` is stamped, and at which step to decide again."""
        while self._chosen < self._place:
            self._block += self.stamp_every
            self._chosen = self._block + self._draw.randrange(self.stamp_every)
        self._decide_at = self._chosen
        if self._place == self._chosen:
            self._decide_at += 1
            self.stamping, self.end_phase = True, self._end_phase
            self._stamps.append(("", self._stamp()))
        elif self.stamping:
            self.stamping, self.end_phase = False, _nothing

    def _resolve_all(self) -> None:
        """Turn all stamps into seconds. Waits for the device."""
        if self._cuda and self._stamps:
            self._wait()
        self._resolve(len(self._stamps))
        self._older = 0

    def _resolve_older(self) -> None:
        """Turn the stamps up to the last such call into seconds.

        A GPU has passed them RESOLVE_EVERY steps ago, or nearly, so it does not run dry meanwhile.
        """
        self._resolve(self._older)
        self._older = len(self._stamps)

    def _resolve(self, count: int) -> None:
        stamps = self._stamps[:count]
        del self._stamps[:count]
        if self._device_clock:
            stamps = self._device_clock.seconds(stamps)
        self._totals.add(stamps)

    def _phase_ender(self) -> Callable[[str], None]:
        """Return `end_phase`. It is a closure, called seven times a step, and a step may last 80 us."""
        if not self.enabled:
            return _nothing
        stamps, stamp = self._stamps, self._stamp
        append = stamps.append

        def end_phase(phase: str) -> None:
            append((phase, stamp()))

        return end_phase

    def _wait(self) -> None:
        import torch

        torch.cuda.synchronize(self._device)


def _device_clock(device: str, now: Callable[[], float]) -> DeviceClock:
    import torch

    return DeviceClock(torch, device, now)


def _events(device_clock: DeviceClock) -> Callable[[], Any]:
    """Return what stamps the device's present stream with an event."""
    event, device, stream = device_clock.event, device_clock.gpu, device_clock.torch.cuda.current_stream
    # The stream by its device: a backend's thread calls this, too, and its present device is 0.
    return lambda: event(stream(device))


def _nothing(phase: str) -> None:
    """End no phase."""

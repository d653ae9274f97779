"""The one clock: phases inside a batch, time outside the batches, and the wall clock of the run.

Only this module reads time. A phase ends where the next one begins, so the phases add up to the batch by
construction. On a GPU a stamp is a CUDA event on the current stream, read when the device has passed it;
the host clock would only show when a kernel was queued.

Communication is split where DDP's last bucket is handed to the backend: from there until backward returns
nothing hides it, so it is *exposed* (waiting for a slower rank included); what the buckets were busy with
before that moment is *overlapped* with backward.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mlbench.experiment.phases import PhaseTimes, duration_bin

HEARTBEAT_S = 1.0  # s between two heartbeats while a run trains
RESOLVE_EVERY = 1_000  # batches between two sums of stamps, which bounds how many of them are kept


class PhaseTimer:
    """Measures one rank of one run.

    - device: "cpu" or "cuda".
    - enabled: (default true) false takes no stamps inside the batches, to measure what stamps cost.
    - end_phase(phase): end `phase` here; it lasted from the mark before.
    - now, wall_now: clocks, replaced in tests.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        enabled: bool = True,
        now: Callable[[], float] = time.perf_counter,
        wall_now: Callable[[], float] = time.time,
    ) -> None:
        self.enabled = enabled
        self._cuda = device == "cuda"
        self._now = now
        self._wall_now = wall_now
        self._stamp: Callable[[], Any] = self._event if self._cuda else now
        self._marks: list[tuple[str, Any]] = []
        self.end_phase = self._phase_ender()
        self._launches: list[Any] = []
        self._buckets: list[tuple[Any, Any]] = []
        self._older = (0, 0, 0)  # how many of each lie before the last boundary of RESOLVE_EVERY
        self._times = PhaseTimes()
        self._last_heartbeat = now()
        self.started_at = 0.0
        self._started = now()

    def start(self, *, started_at: float | None = None) -> None:
        """Start the clock of time_to_accuracy: the next thing is the first touch of training data.

        `started_at` (wall clock, s) is given after a restart: the clock runs on from the first start.
        """
        self._started = self._now()
        self.started_at = self._wall_now()
        if started_at is not None:
            self._started -= max(0.0, self.started_at - started_at)
            self.started_at = started_at

    def elapsed(self) -> float:
        """Return the seconds since `start`; this clock never pauses."""
        return self._now() - self._started

    def resume(self) -> None:
        """Begin the first batch after `start` or after time spent outside the batches."""
        self.end_phase("")

    def end_step(self, samples: int) -> None:
        """End the batch and its last phase, metrics; count this rank's samples."""
        self.end_phase("metrics")
        self._times.steps += 1
        self._times.samples += samples
        if self.enabled and self._times.steps % RESOLVE_EVERY == 0:
            self._resolve_older()

    def bucket_launched(self) -> Any:
        """Stamp that a bucket of gradients is complete and handed to the backend."""
        stamp = self._stamp()
        self._launches.append(stamp)
        return stamp

    def bucket_reduced(self, launch: Any) -> None:
        """Stamp that the bucket launched at `launch` has been reduced."""
        self._buckets.append((launch, self._stamp()))

    def heartbeat_due(self) -> bool:
        """Return true about once a second."""
        now = self._now()
        if now - self._last_heartbeat < HEARTBEAT_S:
            return False
        self._last_heartbeat = now
        return True

    @contextmanager
    def outside_steps(self, name: str) -> Iterator[None]:
        """Measure time between steps: loading, validation, report. The device is waited for."""
        self._resolve_events()
        begin = self._now()
        yield
        if self._cuda:
            self._wait()
        spent = self._times.outside.get(name, 0.0)
        self._times.outside[name] = spent + self._now() - begin

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
        that all ranks begin together with nothing queued.
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

    def pop(self) -> PhaseTimes:
        """Return what was measured since the last call."""
        self._resolve_events()
        times, self._times = self._times, PhaseTimes()
        return times

    def _resolve_events(self) -> None:
        """Turn all stamps into seconds; waits for the device."""
        if not self._marks:
            return
        if self._cuda:
            self._wait()
        self._resolve_first(len(self._marks), len(self._launches), len(self._buckets))
        self._older = (0, 0, 0)

    def _resolve_older(self) -> None:
        """Turn the stamps up to the last such call into seconds; the time that takes is in no batch.

        A GPU has passed them RESOLVE_EVERY batches ago, or nearly, so it does not run dry meanwhile.
        """
        self._resolve_first(*self._older)
        self._older = (len(self._marks), len(self._launches), len(self._buckets))
        self.resume()

    def _resolve_first(self, marks: int, launches: int, buckets: int) -> None:
        """Turn the first so many stamps of each kind, which are those of whole batches, into seconds."""
        if not marks:
            return
        ends, left, arrived = (
            _taken(self._marks, marks),
            _taken(self._launches, launches),
            _taken(self._buckets, buckets),
        )
        if self._cuda:
            for event in (ends[-1][1], *(arrival for _, arrival in arrived)):
                event.synchronize()
            zero = ends[0][1]
            ends = [(phase, zero.elapsed_time(event) / 1e3) for phase, event in ends]
            left = [zero.elapsed_time(event) / 1e3 for event in left]
            arrived = [(zero.elapsed_time(a) / 1e3, zero.elapsed_time(b) / 1e3) for a, b in arrived]
        _account(self._times, ends, left, arrived)

    def _phase_ender(self) -> Callable[[str], None]:
        """Return `mark`; a closure, for it is called seven times a batch, and a batch may last 80 us."""
        if not self.enabled:
            return lambda phase: None
        append = self._marks.append

        def end_phase(phase: str) -> None:
            append((phase, self._stamp()))

        return end_phase

    def _event(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _wait(self) -> None:
        import torch

        torch.cuda.synchronize()


def _taken(kept: list[Any], count: int) -> list[Any]:
    """Take the first so many out of a list and return them."""
    first = kept[:count]
    del kept[:count]
    return first


def _account(
    times: PhaseTimes,
    marks: list[tuple[str, float]],
    launches: list[float],
    buckets: list[tuple[float, float]],
) -> None:
    """Add stamped batches to the times."""
    launches, buckets = sorted(launches), sorted(buckets)
    next_launch = next_bucket = 0
    previous = batch_begin = marks[0][1]
    for phase, now in marks:
        if phase == "":
            previous = batch_begin = now
            continue
        if phase == "backward":
            last_launch = now
            while next_launch < len(launches) and launches[next_launch] <= now:
                last_launch = launches[next_launch]
                next_launch += 1
            times.phases["backward"] += last_launch - previous
            times.phases["communication"] += now - last_launch
            inside = []
            while next_bucket < len(buckets) and buckets[next_bucket][0] <= now:
                inside.append(buckets[next_bucket])
                next_bucket += 1
            times.overlapped_communication += _busy(inside, until=last_launch)
        else:
            times.phases[phase] += now - previous
        if phase == "metrics":
            n = duration_bin(now - batch_begin)
            times.step_s[n] = times.step_s.get(n, 0) + 1
            batch_begin = now
        previous = now


def _busy(intervals: list[tuple[float, float]], *, until: float) -> float:
    """Return the length of the union of intervals (sorted by begin), cut off at `until`."""
    total, reached = 0.0, float("-inf")
    for begin, end in intervals:
        begin, end = max(begin, reached), min(end, until)
        if end > begin:
            total += end - begin
            reached = end
    return total

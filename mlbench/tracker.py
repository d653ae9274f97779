"""The one clock: phases inside a batch, time outside the batches, and the wall clock of the run.

Only this module reads time. A phase ends where the next one begins, so the phases add up to the batch by
construction. On a GPU a stamp is a CUDA event on the current stream, read after a synchronisation between
epochs; the host clock would only show when a kernel was queued.

Communication is split where DDP's last bucket is handed to the backend: from there until backward returns
nothing hides it, so it is *exposed* (waiting for a slower rank included); what the buckets were busy with
before that moment is *overlapped* with backward.
"""

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

PHASES = ("data_wait", "forward", "loss", "backward", "communication", "optimizer", "metrics")
PROGRESS_S = 1.0  # s between two signs of life while a run trains


def wall() -> float:
    """Return the wall clock in seconds since 1970, comparable between processes of one machine."""
    return time.time()


def monotonic() -> float:
    """Return the monotonic host clock in seconds, for durations inside one process."""
    return time.perf_counter()


def iso(seconds: float) -> str:
    """Return a wall-clock time as ISO 8601 in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")


def process_start() -> float:
    """Return when this process was started (wall clock, s), before Python imported anything."""
    import psutil

    return psutil.Process().create_time()


@dataclass
class Segment:
    """What was measured between two validations, on one rank; seconds."""

    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    overlapped_communication: float = 0.0
    outside: dict[str, float] = field(default_factory=dict)  # validation, checkpoint, report
    batches: int = 0
    samples: int = 0
    batch_s: list[float] = field(default_factory=list)  # every batch, data_wait included


class Tracker:
    """Measures one rank of one run.

    - device: "cpu" or "cuda".
    - instrument: (default true) false takes no stamps inside the batches, to measure what stamps cost.
    - now, wall_now: clocks, replaced in tests.
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        instrument: bool = True,
        now: Callable[[], float] = time.perf_counter,
        wall_now: Callable[[], float] = time.time,
    ) -> None:
        self.instrument = instrument
        self._cuda = device == "cuda"
        self._now = now
        self._wall_now = wall_now
        self._stamp: Callable[[], Any] = self._event if self._cuda else now
        self._marks: list[tuple[str, Any]] = []
        self._launches: list[Any] = []
        self._buckets: list[tuple[Any, Any]] = []
        self._segment = Segment()
        self._last_sign = now()
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
        if self.instrument:
            self._marks.append(("", self._stamp()))

    def mark(self, phase: str) -> None:
        """End `phase` here: it lasted from the mark before."""
        if self.instrument:
            self._marks.append((phase, self._stamp()))

    def end_batch(self, samples: int) -> None:
        """End the batch and its last phase, metrics; count this rank's samples."""
        self.mark("metrics")
        self._segment.batches += 1
        self._segment.samples += samples

    def launched(self) -> Any:
        """Stamp that a bucket of gradients is complete and handed to the backend."""
        stamp = self._stamp()
        self._launches.append(stamp)
        return stamp

    def arrived(self, launch: Any) -> None:
        """Stamp that the bucket launched at `launch` has been reduced."""
        self._buckets.append((launch, self._stamp()))

    def due(self) -> bool:
        """Return true about once a second: time for a sign of life."""
        now = self._now()
        if now - self._last_sign < PROGRESS_S:
            return False
        self._last_sign = now
        return True

    @contextmanager
    def outside(self, name: str) -> Iterator[None]:
        """Measure time between batches: validation, checkpoint, report. The device is waited for."""
        self._settle()
        begin = self._now()
        yield
        if self._cuda:
            self._wait()
        spent = self._segment.outside.get(name, 0.0)
        self._segment.outside[name] = spent + self._now() - begin

    def time_repeats(
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

    def take(self) -> Segment:
        """Return what was measured since the last call."""
        self._settle()
        segment, self._segment = self._segment, Segment()
        return segment

    def _settle(self) -> None:
        """Turn the collected stamps into seconds; waits for the device."""
        if not self._marks:
            return
        marks, launches, buckets = self._marks, self._launches, self._buckets
        if self._cuda:
            self._wait()
            zero = marks[0][1]
            marks = [(phase, zero.elapsed_time(event) / 1e3) for phase, event in marks]
            launches = [zero.elapsed_time(event) / 1e3 for event in launches]
            buckets = [(zero.elapsed_time(a) / 1e3, zero.elapsed_time(b) / 1e3) for a, b in buckets]
        _account(self._segment, marks, launches, buckets)
        self._marks, self._launches, self._buckets = [], [], []

    def _event(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _wait(self) -> None:
        import torch

        torch.cuda.synchronize()


def _account(
    segment: Segment,
    marks: list[tuple[str, float]],
    launches: list[float],
    buckets: list[tuple[float, float]],
) -> None:
    """Add stamped batches to the segment."""
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
            segment.phases["backward"] += last_launch - previous
            segment.phases["communication"] += now - last_launch
            inside = []
            while next_bucket < len(buckets) and buckets[next_bucket][0] <= now:
                inside.append(buckets[next_bucket])
                next_bucket += 1
            segment.overlapped_communication += _busy(inside, until=last_launch)
        else:
            segment.phases[phase] += now - previous
        if phase == "metrics":
            segment.batch_s.append(now - batch_begin)
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

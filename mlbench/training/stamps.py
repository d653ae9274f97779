"""From stamps to seconds: the phases of stamped steps, and when their gradients were complete."""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlbench.probe.device_moments import GpuClock
from mlbench.record.phases import PHASES, TRAIN_STEP, UNDIVIDED, PhaseTimes, duration_bin

RESOLVE_EVERY = 1_000  # stamped steps between two sums of stamps, which bounds how many of them are kept
Stamp = tuple[str, Any]  # kind and moment
# Phases that end with communication, and what went on before its launch.
ENDS_COMMUNICATION = {"backward": "backward", "transfer": "optimizer"}


@dataclass
class Arrivals:
    """Of each stamped step with communication, one entry, s on this rank's clock.

    - launched: when the last bucket was handed to the backend. exposed: from there until backward ended.
    - weights: how many steps' time a stamped one represents.
    """

    launched: array = field(default_factory=lambda: array("d"))
    exposed: array = field(default_factory=lambda: array("d"))
    weights: array = field(default_factory=lambda: array("d"))


@dataclass
class _Stratum:
    """Sums over some stamped steps, s. `launched` and `exposed` are of each step that launched a bucket."""

    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    overlapped: float = 0.0
    launched: array = field(default_factory=lambda: array("d"))
    exposed: array = field(default_factory=lambda: array("d"))

    def seconds(self) -> float:
        return math.fsum(self.phases.values())


class StepTotals:
    """Adds up stamped steps: those that come first after time outside, and those that represent others."""

    def __init__(self) -> None:
        self.first, self.others = _Stratum(), _Stratum()
        self.step_s: dict[int, int] = {}
        self.stamped = 0
        self._stratum = self.others
        self._begin = self._previous = 0.0
        self._buckets: list[tuple[float, float]] = []
        self._launch: float | None = None

    def add(self, stamps: Sequence[tuple[str, Any]]) -> None:
        """Take in stamps (s) in the order in which they were taken. A step may span two calls."""
        for kind, at in stamps:
            if kind == "launch":
                self._launch = at
            elif kind == "reduced":
                self._buckets.append(at)
            elif kind in ("", "first"):
                self._begin = self._previous = at
                self._stratum = self.first if kind == "first" else self.others
            else:
                self._end_phase(kind, at)

    def _end_phase(self, phase: str, at: float) -> None:
        stratum = self._stratum
        computed = ENDS_COMMUNICATION.get(phase)
        if computed and self._launch is not None and self._launch >= self._previous:
            stratum.phases[computed] += self._launch - self._previous
            stratum.phases["transfer"] += at - self._launch
            stratum.overlapped += busy(sorted(self._buckets), until=self._launch)
            stratum.launched.append(self._launch)
            stratum.exposed.append(at - self._launch)
        else:
            stratum.phases[phase] = stratum.phases.get(phase, 0.0) + at - self._previous
        if computed:
            self._buckets.clear()
            self._launch = None
        if phase == "metrics":
            n = duration_bin(at - self._begin)
            self.step_s[n] = self.step_s.get(n, 0) + 1
            self.stamped += 1
            self._begin = at
            self._stratum = self.others
        self._previous = at

    def fill(self, times: PhaseTimes) -> Arrivals:
        """Write the sums into `times`, scaled such that the phases add up to its seconds."""
        first, others = self.first, self.others
        stamped = first.seconds() + others.seconds()
        if stamped == 0:
            return Arrivals()
        rest = times.seconds - first.seconds()
        if others.seconds() > 0 and rest > 0:
            weights = (1.0, rest / others.seconds())
        else:
            weights = (times.seconds / stamped,) * 2
        arrivals = Arrivals()
        if any(TRAIN_STEP in stratum.phases for stratum in (first, others)):
            times.phases = dict.fromkeys(UNDIVIDED, 0.0)
            for stratum in (first, others):
                stratum.phases = {phase: stratum.phases.get(phase, 0.0) for phase in UNDIVIDED}
        for stratum, weight in zip((first, others), weights, strict=True):
            for phase, seconds in stratum.phases.items():
                times.phases[phase] += weight * seconds
            times.overlapped_communication += weight * stratum.overlapped
            arrivals.launched.extend(stratum.launched)
            arrivals.exposed.extend(stratum.exposed)
            arrivals.weights.extend([weight] * len(stratum.launched))
        times.step_s, times.stamped_steps = self.step_s, self.stamped
        return arrivals


class DeviceClock(GpuClock):
    """Turns the CUDA events of stamps into seconds on the host's clock, and keeps them for further use.

    A "first" comes with the host's time at which the device was idle, an "anchor" is one of GpuClock.
    """

    def seconds(self, stamps: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Return the stamps in seconds. Waits until the device has passed them."""
        result: list[tuple[str, Any]] = []
        for event in [stamp for kind, stamp in stamps if kind not in ("first", "reduced", "anchor")][-1:]:
            event.synchronize()
        for kind, stamp in stamps:
            if kind == "anchor":
                self.tie(stamp)
            elif kind == "first":
                self.begin(*stamp)
                result.append((kind, stamp[1]))
            elif kind == "reduced":
                stamp[1].synchronize()  # on a separate stream
                result.append((kind, (self.at(stamp[0]), self.at(stamp[1]))))
                self.free += stamp
            else:
                at = self.at(stamp)
                result.append((kind, at))
                if kind in ("", "metrics"):
                    self.rebase(stamp, at)
                elif kind != "launch":  # which its "reduced" holds, too
                    self.free.append(stamp)
        return result


class Stamps:
    """The stamps of this process on the clock of what it computes on, and the sums of the resolved ones.

    - now(): the moment; on a GPU an event on its present stream.
    - kept: kind and moment of each stamp that is in no sum yet. Kinds: a phase that ends, a begin of a step
      ("", or "first" after time outside), "launch", "reduced" and "anchor".
    - steps: how many were stamped.
    """

    def __init__(self, device: str, now: Callable[[], float]) -> None:
        self._device = device
        self._clock = _device_clock(device, now) if device.startswith("cuda") else None
        # Without a reference to its owner: it is to be freed at once, and not in a fork, which has no CUDA.
        self.now: Callable[[], Any] = _events(self._clock) if self._clock else now
        self.kept: list[Stamp] = []
        self.totals = StepTotals()
        self.steps = 0
        self._older = 0  # how many stamps lie before the last boundary of RESOLVE_EVERY

    def first(self, now: float) -> None:
        """Stamp the begin of the first step after time outside. `now` is the host's time."""
        self.kept.append(("first", (self.now(), now) if self._clock else now))

    def anchor(self) -> None:
        """Tie the GPU's clock to the host's, if there is one and it is time."""
        if self._clock and (anchor := self._clock.anchor()):
            self.kept.append(("anchor", anchor))

    def step_ends(self) -> None:
        """Count a stamped step. Sum up those of long ago: a GPU has passed them, and does not run dry."""
        self.steps += 1
        if self.steps % RESOLVE_EVERY == 0:
            self._resolve(self._older)
            self._older = len(self.kept)

    def resolve(self) -> None:
        """Turn all stamps into seconds. Waits for the device."""
        if self.kept:
            self.wait()
        self._resolve(len(self.kept))
        self._older = 0

    def drop(self) -> None:
        """Forget the stamps that are in no sum yet."""
        del self.kept[:]
        self._older = 0

    def fill(self, times: PhaseTimes) -> Arrivals:
        """Write the sums since the last call into `times`."""
        totals, self.totals = self.totals, StepTotals()
        times.clock_error_s = self._clock.error_s if self._clock else 0.0
        return totals.fill(times)

    def between(self, pairs: Sequence[tuple[Any, Any]]) -> list[float]:
        """Return the seconds between two moments of each pair. Waits for the device."""
        self.wait()
        return [begin.elapsed_time(end) / 1e3 if self._clock else end - begin for begin, end in pairs]

    def wait(self) -> None:
        """Wait until a GPU has done all that was queued on it."""
        if self._clock:
            self._clock.torch.cuda.synchronize(self._device)

    def _resolve(self, count: int) -> None:
        stamps = self.kept[:count]
        del self.kept[:count]
        self.totals.add(self._clock.seconds(stamps) if self._clock else stamps)


def _device_clock(device: str, now: Callable[[], float]) -> DeviceClock:
    import torch

    return DeviceClock(torch, device, now)


def _events(device_clock: DeviceClock) -> Callable[[], Any]:
    """Return what stamps the device's present stream with an event."""
    event, device, stream = device_clock.event, device_clock.gpu, device_clock.torch.cuda.current_stream
    # The stream by its device: a backend's thread calls this, too, and its present device is 0.
    return lambda: event(stream(device))


def busy(intervals: list[tuple[float, float]], *, until: float) -> float:
    """Return the length of the union of intervals (sorted by begin), cut off at `until`."""
    total, reached = 0.0, float("-inf")
    for begin, end in intervals:
        begin, end = max(begin, reached), min(end, until)
        if end > begin:
            total += end - begin
            reached = end
    return total

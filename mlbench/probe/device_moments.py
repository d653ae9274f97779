"""Moments on a GPU's stream: CUDA events, and what they are on the host's clock."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from mlbench.probe import clock
from mlbench.probe.stamps import BACKWARD_END, LAUNCH, MET, MOMENTS, REPLAYED, STEP, Stamp

FIRST_S, EVERY_S = 0.5, 5.0  # s between two anchors, at first and at most
ROUNDS = 3  # events an anchor, of which the fastest counts
PATIENCE_S = 2e-4  # s that an anchor may take; after that there is none
Anchor = tuple[Any, float, float]  # an event, when it was on the host's clock, and how wrong that may be, s

_kept: list[Any] = []


def never_free(*values: Any) -> None:
    """Keep values for good, also when Python ends: in a fork, CUDA events must not be freed."""
    _kept.append(values)
    with suppress(Exception):  # without it they are kept until Python ends
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(values))


class GpuClock:
    """Brings CUDA events to the host's clock, from which a GPU's oscillator drifts by up to 100 us a second.

    An anchor is an event on a stream of its own, which has nothing before it, between two looks at the host's
    clock. Time is linear from one anchor to the next and goes on with that rate. torch gives the time between
    two events as a float32 of milliseconds, which is coarse over minutes: each is taken to a recent one.

    - free: events to use again. error_s: how wrong the times since the last anchor were at its end.
    """

    def __init__(self, torch: Any, gpu: Any, now: Callable[[], float]) -> None:
        self.torch, self.gpu, self._host_now = torch, gpu, now
        self.free: list[Any] = []
        self.error_s = 0.0
        self._side: Any = None  # the stream of the anchors
        self._base: Any = None
        self._base_s, self._rate = 0.0, 1.0  # when that was; seconds of the host in one of the GPU
        self._tied_s = 0.0  # when the last anchor was
        self._due_s, self._pause_s = now() + FIRST_S, FIRST_S

    def event(self, stream: Any) -> Any:
        """Return an event of this moment on a stream."""
        event = self.free.pop() if self.free else self.torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def anchor(self) -> Anchor | None:
        """Return an anchor if one is due and the GPU answers at once; no stream is waited for."""
        if self._host_now() < self._due_s or self.torch.cuda.is_current_stream_capturing():
            return None
        found = self._anchor(PATIENCE_S)
        self._pause_s = min(2 * self._pause_s, EVERY_S)
        self._due_s = self._host_now() + self._pause_s
        return found

    def _anchor(self, patience_s: float) -> Anchor | None:
        now, anchors = self._host_now, []
        if self._side is None:
            self._side = self.torch.cuda.Stream(self.gpu, priority=-1)
        for _ in range(ROUNDS):
            begin = now()
            event = self.event(self._side)
            while not event.query():
                if now() - begin > patience_s:
                    return None
            end = now()
            anchors.append(((end - begin) / 2, begin, event))
        error_s, begin, event = min(anchors, key=lambda each: each[:2])
        self.free += [each for *_, each in anchors if each is not event]
        return event, begin + error_s, error_s

    def tie(self, anchor: Anchor) -> None:
        """Go on from an anchor, which lies not long after the last base."""
        event, at, error_s = anchor
        wrong_s, past_s = at - self.at(event), at - self._tied_s
        if past_s >= FIRST_S:  # a shorter time says nothing about the rate
            self._rate *= 1 + wrong_s / past_s
        self.error_s = abs(wrong_s) + error_s
        self.begin(event, at)

    def begin(self, event: Any, at: float | None = None) -> None:
        """Go on from an event that was at a moment on the host's clock, or that the GPU has passed."""
        if at is not None:
            moment = at
        else:
            anchor, moment, self.error_s = self._anchor(float("inf")) or (event, self._host_now(), 0.0)
            moment -= event.elapsed_time(anchor) / 1e3
        self._tied_s = moment
        self.rebase(event, moment)

    @property
    def begun(self) -> bool:
        """Return whether there is a base."""
        return self._base is not None

    def at(self, event: Any) -> float:
        """Return when an event was, s."""
        return self._base_s + self._rate * self._base.elapsed_time(event) / 1e3

    def rebase(self, event: Any, at: float) -> None:
        """Take further events to this one, which was at a moment on the host's clock."""
        if self._base not in (None, event):
            self.free.append(self._base)
        self._base, self._base_s = event, at


class DeviceMoments:
    """Turns CUDA events into seconds on the host's clock, each by the end of the step before it.

    - gpu: the device whose streams are stamped.
    - readings: stamps that it has passed, in s. read_at: when they were read.
    - requested: whether the sender waits for more of them.
    """

    def __init__(self, torch: Any, gpu: Any) -> None:
        self.torch, self.gpu = torch, gpu
        self.clock = GpuClock(torch, gpu, clock.monotonic)
        self._stream = torch.cuda.current_stream(gpu)  # of the script's models
        self.readings: list[Stamp] = []
        self.read_at = 0.0
        self.requested = False

    def aside(self) -> bool:
        """Return whether this thread queues to another stream than that of the script's models."""
        return self.torch.cuda.current_stream(self.gpu) != self._stream

    def capturing(self) -> bool:
        """Return whether this thread makes a CUDA graph, in which an event would be a part of the graph."""
        return self.torch.cuda.is_current_stream_capturing()

    def now(self) -> Any:
        """Return an event of this moment, None in the capture of a CUDA graph."""
        if self.capturing():
            return None
        # By its device: the process may have chosen another one, and backward chooses that of its part.
        return self.clock.event(self.torch.cuda.current_stream(self.gpu))

    def read(self, stamps: Iterable[Stamp]) -> list[Stamp]:
        """Return stamps in s, of which the GPU has passed all; moments of the host stay what they are.

        A collective on another stream that is not over yet is left out.
        """
        result: list[Stamp] = []
        for kind, *values in stamps:
            count = MOMENTS[kind]
            events = dict.fromkeys(event for event in values[:count] if not isinstance(event, float))
            if kind == MET and not all(event.query() for event in events):
                continue
            if events and not self.clock.begun:
                self.clock.begin(next(iter(events)))
            moments = [at if isinstance(at, float) else self.clock.at(at) for at in values[:count]]
            result.append((kind, *moments, *values[count:]))
            if events and kind in (BACKWARD_END, STEP, REPLAYED):
                self.clock.rebase(next(iter(events)), moments[0])
            elif kind != LAUNCH:  # which its REDUCED holds, too
                self.clock.free += events
        if self.clock.begun and (anchor := self.clock.anchor()):
            self.clock.tie(anchor)
        return result

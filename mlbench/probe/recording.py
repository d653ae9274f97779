"""The stamps of this process, on the clock of what it computes on, until they are taken."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from mlbench.probe import clock
from mlbench.probe.device_moments import DeviceMoments, never_free
from mlbench.probe.guard import Guard
from mlbench.probe.stamps import BACKWARD_END, REPLAYED, STEP, Stamp

PASSES = 16  # backward passes without a step of an optimizer, after which a process is taken to train
UNTRAINED = 4096  # stamps that are kept of a process that does not train
FIRST = 3  # steps, after which the script has imported what it compiles with


class Recording(Guard):
    """Takes stamps, and gives them out in seconds.

    - begin: called once the process trains.
    """

    def __init__(self, torch: Any, begin: Callable[[], object] = lambda: None) -> None:
        super().__init__(torch)
        self._begin = begin
        self.stamps: list[Stamp] = []
        self.device: DeviceMoments | None = None
        self.begin_anew()

    def begin_anew(self, gpu: Any = None) -> None:
        """Begin without stamps, in this thread: at first, in a fork, and for another run.

        gpu: the one whose streams are stamped; None: the host's clock. In a fork what was stamped is kept as
        it is: an event that is freed calls CUDA, which a fork cannot.
        """
        if self.device is not None:
            never_free(self.device, self.stamps[:])
        self.stamps.clear()
        self.until = 0.0  # the moment up to which `take` has returned all stamps
        self.steps = self.passes = 0
        self.in_backward = self.in_bucket = False  # whether DDP's hook launches a bucket
        self.stepping: int | None = None  # the optimizer of which a step has begun, not one within it
        self.thread = threading.get_ident()  # the one that is watched
        self.native_thread = threading.get_native_id()  # likewise, as the kernel names it
        self.apart: set[int] = set()  # others that call modules with gradients while it lives
        self.device = None if gpu is None else DeviceMoments(self.torch, gpu)
        self.now: Callable[[], Any] = clock.monotonic if self.device is None else self.device.now

    def choose_clock(self, weights: Iterable[Any]) -> None:
        """Stamp on the GPU of these weights, if any; what was stamped before stays on the host's clock."""
        if not self.steps and self.device is None:
            gpu = next((weight.device for weight in weights if weight.is_cuda), None)
            if gpu is not None:
                self.device = DeviceMoments(self.torch, gpu)
                self.now = self.device.now

    def follow(self) -> bool:
        """Return whether this thread is watched, as the first one that trains is, and one after its end."""
        thread = threading.get_ident()
        if thread == self.thread:
            return True
        alive = {each.ident for each in threading.enumerate()}
        if thread not in alive:  # one of autograd's
            return False
        if not (self.steps or self.passes or self.in_backward):
            self.stamps.clear()  # of a thread that reads data or validates
            self.notes -= {"data", "forward"}
        elif self.thread in alive:
            self.apart.add(thread)
            return False
        self.thread, self.native_thread = thread, threading.get_native_id()
        self.apart.discard(thread)
        return True

    def mark(self, kind: int, *others: float) -> Any:
        """Stamp that something happens now; return the moment, None in the capture of a CUDA graph."""
        at = self.now()
        if at is not None:
            self.stamps.append((kind, at, *others))
        return at

    def fail(self, error: Exception) -> None:
        """End the watching, and keep why; before the first stamps are taken no record could say it."""
        super().fail(error)
        if not self.until:
            sys.stderr.write(f"mlbench: the probe stopped: {self.failure}\n")

    def end_step(self) -> None:
        """Take a step of an optimizer, or a replayed one, as made."""
        self.steps += 1
        if self.until_ready and self.steps <= FIRST:
            self.get_ready()
        if self.steps == 1 and self.passes < PASSES:
            self._begin()
        if self.device is not None and self.device.requested:
            self.read()

    def end_pass(self) -> None:
        """Take a backward pass as made, which may be a step."""
        self.passes += 1
        if not self.steps:
            if self.passes == PASSES:
                self._begin()
            if self.device is not None and self.device.requested:
                self.read()

    def bound(self) -> None:
        """Keep the begin and the end of what a process has done before it trains, if that is much."""
        if len(self.stamps) > UNTRAINED and not self.steps and not self.passes:
            del self.stamps[1:-2]

    def read(self, *, all_passed: bool = False) -> None:
        """Turn the events that the GPU has passed into moments in s.

        Only where the script trains: a call of CUDA from another thread can end its capture of a CUDA graph.
        """
        assert self.device is not None
        begin, self.device.requested, count = clock.monotonic(), False, len(self.stamps)
        while count and not all_passed and not self._passed(self.stamps[count - 1]):
            count -= 1
        self.device.readings += self.device.read(self.stamps[:count])
        del self.stamps[:count]
        self.device.read_at = begin  # last, as `take` asks for it first

    @staticmethod
    def _passed(stamp: Stamp) -> bool:
        return stamp[0] in (BACKWARD_END, STEP, REPLAYED) and (type(stamp[1]) is float or stamp[1].query())

    def take(self, *, wait: bool) -> list[Stamp]:
        """Return the stamps that were not taken yet, in s; on a GPU those read since the last call.

        wait: wait for the GPU, and read; only the thread that trains may.
        """
        if self.device is None:
            self.until, ended = clock.monotonic(), self.stamps
        else:
            if wait:
                self.torch.cuda.synchronize(self.device.gpu)
                self.read(all_passed=True)
            self.device.requested = not wait  # for the next call
            self.until, ended = self.device.read_at, self.device.readings
        complete = ended[:]
        del ended[: len(complete)]
        return complete

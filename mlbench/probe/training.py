"""Stamps the DataLoaders, backward passes and optimizers of a script."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from inspect import isfunction, isgeneratorfunction
from typing import Any

from mlbench.probe import clock, torch_private
from mlbench.probe.flop_counter import FlopCounter
from mlbench.probe.graphs import Graphs
from mlbench.probe.models import KEY, Models
from mlbench.probe.recording import Recording
from mlbench.probe.stamps import (
    BACKWARD,
    BACKWARD_END,
    COMPILED,
    DATA,
    DATA_END,
    OPTIMIZER,
    SAVED,
    START,
    STEP,
)


def watch_loaders(recording: Recording, loader: Any) -> None:
    """Stamp the making of an iterator, which starts the loader's workers, each batch, and its end.

    Also of a subclass that makes iterators of its own, such as torchdata's StatefulDataLoader.
    """
    watched = set[Any]()

    def watch(loader: Any) -> None:
        start = _timed(recording, loader.__iter__, START)

        @wraps(loader.__iter__)
        def iterate(loader: Any) -> Any:
            batches = start(loader)
            kind = next((each for each in type(batches).__mro__ if "__next__" in vars(each)), None)
            if kind is not None and kind not in watched:
                watched.add(kind)
                with suppress(TypeError):  # of a class that is not Python's, nothing can be stamped
                    kind.__next__ = _timed(recording, kind.__next__, DATA)
            return batches

        loader.__iter__ = iterate

    @classmethod
    def prepare(kind: Any, **options: Any) -> None:
        super(loader, kind).__init_subclass__(**options)
        own = vars(kind).get("__iter__")
        by_value = kind.__module__ == "__main__"  # as Ray pickles it, with all that its methods refer to
        if recording.watching and isfunction(own) and not isgeneratorfunction(own) and not by_value:
            watch(kind)

    watch(loader)
    loader.__init_subclass__ = prepare


def _timed(recording: Recording, draw: Callable[[Any], Any], kind: int) -> Callable[[Any], Any]:
    def stop() -> None:
        recording.mark(DATA_END)
        recording.notes.add("data")
        if not recording.steps:
            recording.bound()

    begin, end = recording.guarded(recording.mark, eager=True), recording.guarded(stop, eager=True)

    @wraps(draw)
    def timed(loader: Any) -> Any:
        if threading.get_ident() != recording.thread and (recording.stamps or not recording.follow()):
            return draw(loader)
        begin(kind)
        try:
            return draw(loader)
        finally:
            if threading.get_ident() == recording.thread:
                end()

    return timed


def watch_backward(recording: Recording, autograd: Any, models: Models) -> None:
    """Stamp where a backward pass begins and ends, but not within another, or within a forward pass."""

    def begin() -> None:
        recording.mark(BACKWARD, models.is_fresh())

    def end() -> None:
        if recording.mark(BACKWARD_END) is not None:
            recording.end_pass()

    begun, ended = recording.guarded(begin, eager=True), recording.guarded(end, eager=True)

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def backward(*arguments: Any, **options: Any) -> Any:
            inner = recording.in_backward or models.current is not None
            if inner or recording.compiling() or not recording.follow():
                return call(*arguments, **options)
            begun()
            recording.in_backward = True
            try:
                return call(*arguments, **options)
            finally:
                recording.in_backward = False
                ended()

        return backward

    autograd.backward, autograd.grad = watched(autograd.backward), watched(autograd.grad)


def watch_spans(recording: Recording, torch: Any) -> None:
    """Stamp what torch.save takes, and torch.compile once the script has imported that."""
    save, began = torch.save, []

    def begin(*_: Any) -> None:
        began.append(clock.monotonic())

    def end(kind: int) -> None:
        recording.mark(kind, clock.monotonic() - began.pop())

    begun, saved = recording.guarded(begin), recording.guarded(end)

    @wraps(save)
    def timed(*arguments: Any, **options: Any) -> Any:
        if threading.get_ident() != recording.thread:
            return save(*arguments, **options)
        begun()
        try:
            return save(*arguments, **options)
        finally:
            saved(SAVED)

    torch.save = torch.serialization.save = timed
    recording.until_ready.append(lambda: torch_private.watch_compiling(begin, lambda *_: end(COMPILED)))


class Optimizers:
    """Stamps the steps of torch's optimizers, of which one may make another's within its own."""

    def __init__(
        self, recording: Recording, models: Models, graphs: Graphs, flop_counter: FlopCounter
    ) -> None:
        self._recording, self._models, self._graphs = recording, models, graphs
        self._flop_counter = flop_counter

    def watch(self) -> None:
        """Set the hooks."""
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        guarded = self._recording.guarded
        torch_private.set_hook(register_optimizer_step_pre_hook, guarded(self.before), KEY)
        torch_private.set_hook(register_optimizer_step_post_hook, guarded(self.after), KEY)

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Stamp that a step begins."""
        recording = self._recording
        if threading.get_ident() in recording.apart:
            recording.notes.add("threads")
        elif recording.stepping in (None, id(optimizer)):
            recording.stepping = id(optimizer)
            if not recording.steps:
                # Its step may be the first thing that is seen: libraries make one to fill its state.
                groups = optimizer.param_groups
                recording.choose_clock(weight for group in groups for weight in group["params"])
            recording.mark(OPTIMIZER)
            self._flop_counter.before(id(optimizer))

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Stamp that a step ends, and with it one of the script."""
        recording = self._recording
        if recording.stepping not in (None, id(optimizer)) or threading.get_ident() in recording.apart:
            return
        recording.stepping = None
        if recording.in_backward:
            recording.notes.add("fused")
        self._models.leave()  # also where a forward pass was interrupted
        if recording.mark(STEP) is None:
            self._graphs.hold_step()
        else:
            recording.end_step()
            self._flop_counter.after(id(optimizer))

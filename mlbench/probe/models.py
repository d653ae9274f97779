"""Finds a script's models, which are the outermost modules with weights, and stamps their forward passes.

No hook stays on a model: torch's global one, of all modules, sees that a model is called, and gives it one
for this call alone. So a model is copied, saved, scripted and exported as without the probe.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import islice
from typing import Any
from weakref import ref

from mlbench.probe import buckets, torch_private
from mlbench.probe.flop_counter import FlopCounter
from mlbench.probe.graphs import Graphs
from mlbench.probe.recording import Recording
from mlbench.probe.stamps import FORWARD, FORWARD_END, INFERENCE, INFERENCE_END

MOST_PARTS = 16  # of a list or dict in which a model's rows are looked for
KEY = -1  # of a hook of the probe
CHANNELS = 4  # of an image, at most
MULTIPLIES = re.compile("Linear|Conv")  # in the name of a module whose weight multiplies matrices


class Model:
    """What is known of one.

    - module: a reference. number: 0 of a module without weights, which is none; the same for modules that
      share their first weight, as a model and its wrapper do.
    - weight: a reference to the first that trains, else to the first. trained: whether a forward pass has.
    """

    __slots__ = ("module", "number", "trained", "weight")

    def __init__(self, module: Any) -> None:
        self.module, self.number, self.trained = module, 0, False
        self.weight: Any = None


class Hook:
    """A hook that a module has during its forward pass; if an interrupt leaves it there, it can be saved."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        self._call(*arguments)

    def __deepcopy__(self, memo: Any) -> Hook:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class Numbers:
    """The numbers of models' first weights, from 1 on."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}  # by id, with a reference
        self._count = 0

    def of(self, weight: Any) -> int:
        """Return the number of a weight, a new one if another weight had its place in memory."""
        reference, number = self._known.get(id(weight), (None, 0))
        if reference is None or reference() is not weight:
            self._count = number = self._count + 1
            self._known[id(weight)] = ref(weight), number
        return number


class Models:
    """Stamps the forward passes of this process's models.

    - current: the module whose forward pass goes on.
    """

    def __init__(self, recording: Recording, graphs: Graphs, flop_counter: FlopCounter) -> None:
        self._recording, self._graphs = recording, graphs
        self._flop_counter, flop_counter.weights = flop_counter, self._weights
        self.current: Any = None
        self._model: Any = None  # the last that was called
        self._trains = False  # whether the forward pass does that goes on
        self._known: dict[int, Model] = {}  # modules by id
        self._numbers = Numbers()
        self._modes: set[bool] = set()  # of modules with gradients: training or not
        self._drawing = torch_private.drawing(recording.torch)
        self._tracing = torch_private.tracing(recording.torch)
        self._before, self._after = recording.guarded(self._begin), Hook(recording.guarded(self._end))
        self._hooks: Any = {}  # torch's global hooks before a forward pass
        self._ends: Any = {}  # and after one
        recording.at_end.append(self.stop)

    def watch(self) -> None:
        """Set the hook."""
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        self._hooks = torch_private.set_hook(register_module_forward_pre_hook, self._before, KEY)
        self._ends = torch_private.set_hook(register_module_forward_hook, self._after, KEY)
        del self._ends[KEY]

    def restart(self) -> None:
        """Look for other models."""
        self._known, self._modes, self._model = {}, set(), None
        self.leave()
        self._hooks[KEY] = self._before

    def stop(self) -> None:
        """Take the hook away."""
        self.leave()
        self._hooks.pop(KEY, None)

    def is_fresh(self) -> bool:
        """Return whether the model that was called last has no gradient yet."""
        weight = None if self._model is None else self._model.weight()
        return weight is not None and weight.grad is None

    def leave(self) -> None:
        """End the forward pass that goes on, if any."""
        module, self.current = self.current, None
        if module is not None:
            torch_private.take_hook(module, KEY)
            self._ends.pop(KEY, None)
            self._hooks[KEY] = self._before

    def _begin(self, module: Any, args: Any) -> None:
        recording, trace = self._recording, self._flop_counter.trace
        if trace is not None and recording.in_backward:
            trace.recomputed = True
        if threading.get_ident() != recording.thread and not self._follows(module):
            return None
        if self._drawing() or self._tracing():
            return None
        model = self._known.get(id(module)) or self._find(module)
        if not model.number or recording.in_backward:  # which may call modules again
            return None
        self._hooks.pop(KEY, None)  # inner modules need no hook, and compiled ones should see none
        self.current, self._model = module, model
        self._trains = trains = self._does_train(module)
        if trains:
            recording.stepping = None  # this is its closure, or its step has raised
            if not model.trained:
                self._first(module, model)
        if not trains and isinstance(module, self._recording.torch.nn.TransformerEncoderLayer):
            self._ends[KEY] = self._after  # which is slow with a hook of its own
        else:
            torch_private.give_hook(module, KEY, self._after)
        if trace is not None and not trains:
            trace.inference = True
        recording.mark(FORWARD if trains else INFERENCE)
        return None

    def _end(self, module: Any, args: Any, kwargs: Any, *_: Any) -> None:
        if module is not self.current:
            return
        self.leave()
        recording, number = self._recording, self._model.number
        if not self._trains:
            recording.mark(INFERENCE_END, number)
            return recording.bound()
        rows, tokens = self._size(args, kwargs)
        if recording.mark(FORWARD_END, number, rows, tokens) is None:
            self._graphs.add_rows(number, rows)
        elif (trace := self._flop_counter.trace) is not None:
            trace.add(number, rows, tokens)
        return None

    def _size(self, args: Any, kwargs: Any) -> tuple[int, int]:
        try:
            return size(args) or size(kwargs.values()) or (0, 0)
        except Exception as error:
            if "uncounted" not in self._recording.notes:
                self._recording.notes.add("uncounted")
                self._recording.swallow(error)
            return 0, 0

    def _find(self, module: Any) -> Model:
        """Return what is known from now on of a module that no other one calls."""
        known, key = self._known, id(module)
        model = Model(ref(module, lambda _: known.pop(key, None)))
        weights = [*module.parameters()]
        if any(map(self._recording.torch.nn.parameter.is_lazy, weights)):
            return model  # until a forward pass has given them a shape
        known[key] = model
        if weights:
            self._recording.choose_clock(weights)
            trained = [weight for weight in weights if weight.requires_grad and weight.is_leaf]
            model.number, model.weight = self._numbers.of(weights[0]), ref((trained or weights)[0])
        return model

    def _does_train(self, module: Any) -> bool:
        """Return whether a forward pass trains; eval() does only where a script never says train()."""
        if not self._recording.torch.is_grad_enabled():
            return False
        self._modes.add(module.training)
        return module.training or True not in self._modes

    def _first(self, module: Any, model: Model) -> None:
        """Prepare a model that trains; earlier the script may give it a communication hook of its own."""
        model.trained = True
        self._recording.notes.add("forward")
        self._recording.get_ready()
        self._recording.choose_clock(module.parameters())
        for part in module.modules():
            if isinstance(part, self._recording.torch.nn.parallel.DistributedDataParallel):
                buckets.watch_buckets(self._recording, part)

    def _weights(self) -> list[Any]:
        """Return the shapes, whole and on this rank, of each weight that has a gradient by a product."""
        modules = [model.module() for model in [*self._known.values()] if model.trained]
        parts = {part for module in modules if module is not None for part in module.modules()}
        found = {}
        for part in parts:
            weight = part._parameters.get("weight") if MULTIPLIES.search(type(part).__name__) else None
            if weight is not None and weight.ndim > 1 and weight.grad is not None:
                found[id(weight)] = tuple(weight.shape), tuple(getattr(weight, "_local_tensor", weight).shape)
        return [*found.values()]

    def _follows(self, module: Any) -> bool:
        """Return whether another thread than the watched one is so from this forward pass on."""
        recording = self._recording
        if recording.in_backward or self.current is not None or not recording.torch.is_grad_enabled():
            return False
        return next(module.parameters(), None) is not None and recording.follow()


def size(inputs: Any, *, deep: int = 2) -> tuple[int, int] | None:
    """Return rows and tokens of a model's inputs, also in lists and dicts; None without a tensor.

    Rows are the first dimension of the first tensor. A list of tensors of shape [channels, height, width] has
    a row each. Tokens are the elements of a matrix of integers of 4 bytes or more.
    """
    for value in inputs:
        if getattr(value, "ndim", 0):
            length: Any = getattr(value, "size", None)  # of a nested tensor, which has no shape, too
            rows: Any = length(0) if callable(length) else len(value)
            return rows, value.numel() if _has_tokens(value) else 0
        if not deep or not isinstance(value, (Mapping, list, tuple)):
            continue
        parts = list(islice(value.values() if isinstance(value, Mapping) else value, MOST_PARTS))
        images = [part for part in parts if getattr(part, "ndim", 0) == 3 and len(part) <= CHANNELS]
        if isinstance(value, list) and len(parts) == len(images) > 0:
            return len(value), 0
        if found := size(parts, deep=deep - 1):
            return found
    return None


def _has_tokens(value: Any) -> bool:
    kind = value.dtype
    real = getattr(kind, "is_floating_point", True) or kind.is_complex
    return value.ndim == 2 and not real and kind.itemsize >= 4

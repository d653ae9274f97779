"""Observes one step of a script, for its FLOP, by torch's execution trace (`execution_trace`).

A trace has each operator of eager and compiled code with the shapes of its inputs. Unlike a TorchDispatchMode
it leaves compiled functions compiled. It reads no data and calls no CUDA.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import prod
from typing import Any

from mlbench.probe import execution_trace, torch_private
from mlbench.probe.recording import Recording
from mlbench.probe.stamps import OBSERVED

ASKED = "MLBENCH_COUNT_FLOP"  # a variable of the environment
BEFORE = 10  # steps of optimizers before one is observed, of each at least two
TRIES = 4  # steps that are observed at most, where something comes between
MOST_STEPS = 64  # of all optimizers, from one step of the rarest to its next
MOST_BYTES = 2**28  # of a trace; a step of 12 layers has 10 MB
PAD = 8  # elements, by which torch.compile pads a matrix at most
HIDDEN = 0.01  # of the weights, whose products may be missing in the trace
PRECISIONS = {"float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16", "double": "fp64"}


class FlopCounter:
    """Observes a step, which then counts in no rate.

    - asked: whether the user wants it; nothing is hooked for it else.
    - result: FLOP by precision, rows, tokens and devices of that step, or `why` there are none.
    - trace: of the step that is observed now. weights: returns the shapes of each that has a gradient.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.asked = os.environ.get(ASKED) == "1"
        self.trace: Trace | None = None
        self.weights: Callable[[], list[Any]] = list
        self._registered = None
        self._ended = False  # whether the step that goes on comes after an observed one
        self.restart()
        recording.at_end.append(lambda: self._end("the probe stopped"))

    def restart(self, *, forked: bool = False) -> None:
        """Begin for another run, or in a fork, which inherits the observer of its parent."""
        why = None if self.asked else f"not asked for ({ASKED}=1 before the command)"
        if forked and self._registered is not None:
            why = "the process was forked from one that was observed"
        self.result: dict[str, Any] | None = {"why": why} if why else None
        self._registered: Trace | None = None
        self._steps: dict[int, int] = {}  # of each optimizer
        self._tries = 0

    def after(self, optimizer: int) -> None:
        """Begin after a step of the optimizer that makes fewest, to observe until its next."""
        trace, counts = self.trace, self._steps
        if trace is not None or self._ended:  # its ranks may begin the step after it at different times
            self._recording.mark(OBSERVED)
            self._ended = False
        if trace is not None:
            trace.end_step()
            if trace.steps > MOST_STEPS:
                self._end("one of its optimizers steps too rarely")
        elif self.result is None:
            counts[optimizer] = counts.get(optimizer, 0) + 1
            if sum(counts.values()) >= BEFORE and 2 <= counts[optimizer] == min(counts.values()):
                self._begin(optimizer)

    def before(self, optimizer: int) -> None:
        """End before the next step of the same optimizer."""
        if self.trace is None or self.trace.optimizer != optimizer:
            return
        if self._recording.in_backward:
            self._end("its optimizer steps within backward")
        elif self.trace.inference and self._tries < TRIES:
            self.interrupt()
        else:
            self._end()

    def interrupt(self, *_: Any) -> None:
        """Observe another step: in this one torch.compile makes code, or the process forks."""
        if self.trace is None:
            return
        if self._tries == TRIES:
            self._end("each step that was observed compiles or forks")
            return
        self.trace.stop()
        self.trace, self._ended = None, True

    def end(self) -> None:
        """End with the script."""
        self._end("the script ended within the step that was observed")

    def _begin(self, optimizer: int) -> None:
        self._tries += 1
        self._recording.mark(OBSERVED)
        try:
            if self._registered is None:
                trace = Trace(self._recording.torch)
                if not trace.register():
                    self.result = {"why": "the script makes an execution trace"}
                    return
                self._registered = trace
            self._registered.start(optimizer)
            self.trace = self._registered
        except Exception as error:  # e.g. no folder for temporary files, an older torch
            self._fail(error)

    def _end(self, why: str | None = None) -> None:
        trace, self.trace, self._ended = self._registered, None, self.trace is not None
        if trace is None or self.result is not None:
            return
        try:
            trace.close()
            gpu = self._recording.device is not None
            self.result = {"why": why} if why else trace.result(self.weights(), gpu=gpu)
        except Exception as error:
            self._fail(error)
        finally:
            trace.remove()

    def _fail(self, error: Exception) -> None:
        if self._registered is not None:
            self._registered.remove()
        self.result = {"why": f"this PyTorch's execution trace cannot be read ({type(error).__name__})"}
        self._recording.swallow(error)


class Trace:
    """The trace from a step of an optimizer to its next, with the rows that models are given.

    A process registers torch's observer once: a range that is open while one is removed and the next is
    registered would end in the next, which has not seen it begin (torch 2.13 reads beyond an empty stack).

    - inference: whether a forward pass was without gradients. recomputed: whether one was in a backward pass.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.optimizer = self.steps = 0
        self.inference = self.recomputed = self._running = False
        self._rows: dict[int, list[int]] = {}  # rows and tokens of each model, since the last step
        self._total = [0, 0]
        self._observer = torch.profiler.ExecutionTraceObserver()
        file, self._path = tempfile.mkstemp(prefix="mlbench-trace-", suffix=".json")
        os.close(file)

    def register(self) -> bool:
        """Register the observer; return False if the script has one."""
        taken = os.environ.get("ENABLE_PYTORCH_EXECUTION_TRACE") == "1"
        if not taken:
            self._observer.register_callback(self._path)
            taken = not getattr(self._observer, "_registered", True)
        if taken:
            self.remove()
        return not taken

    def start(self, optimizer: int) -> None:
        """Observe from here, and forget what was observed before."""
        self.optimizer, self.steps = optimizer, 0
        self.inference = self.recomputed = False
        self._rows, self._total, self._running = {}, [0, 0], True
        _quietly(self._observer.start)
        with self._torch.profiler.record_function(execution_trace.BEGIN):
            pass

    def stop(self) -> None:
        """Observe no more."""
        if self._running:
            self._running = False
            _quietly(self._observer.stop)

    def close(self) -> None:
        """End the trace."""
        self.stop()
        self._observer.unregister_callback()

    def remove(self) -> None:
        """Remove its file."""
        with suppress(OSError):
            os.unlink(self._path)

    def add(self, number: int, rows: int, tokens: int) -> None:
        """Count what a model was given."""
        known = self._rows.setdefault(number, [0, 0])
        known[:] = known[0] + rows, known[1] + tokens

    def end_step(self) -> None:
        """Count the rows of a step: of several models the most."""
        self.steps += 1
        for place in (0, 1):
            self._total[place] += max((counts[place] for counts in self._rows.values()), default=0)
        self._rows = {}

    def result(self, weights: Iterable[Any], *, gpu: bool) -> dict[str, Any]:
        """Return what the trace says; weights: the shapes of each."""
        self.end_step()
        rows, tokens = self._total
        why = None if rows else "no rows were seen between two steps of its optimizer"
        if why or os.path.getsize(self._path) > MOST_BYTES:
            return {"why": why or "its execution trace is too long"}
        counted = execution_trace.count(execution_trace.read(self._path), recomputed=self.recomputed)
        if why := counted.get("why") or _hidden([*weights], counted["shapes"]):
            return {"why": why}
        flops: dict[str, float] = {}
        for kind, value in counted["flops"].items():
            name = self._precision(kind.split()[-1], convolution=" " in kind, gpu=gpu)
            flops[name] = flops.get(name, 0.0) + value
        facts = {"rows": rows, "tokens": tokens, "devices": counted["devices"]}
        return {"flops": flops, "inference": self.inference, **facts}

    def _precision(self, kind: str, *, convolution: bool, gpu: bool) -> str:
        """Return the precision of a type; a GPU's float32 is TF32 where that is allowed."""
        torch = self._torch
        if gpu and kind == "float":
            allowed = torch.backends.cudnn.allow_tf32 if convolution else False
            if allowed or not convolution and torch.get_float32_matmul_precision() != "highest":
                return "tf32"
        return PRECISIONS.get(kind, kind)


def _hidden(weights: Sequence[Any], passes: Iterable[Iterable[Sequence[int]]]) -> str | None:
    """Return why the trace lacks products, if any: kernels that hide some, or weights without.

    passes: the shapes that are seen in forward and backward passes.
    """
    if kernel := torch_private.generated_products() or _launched_kernel():
        return f"{kernel} are in no execution trace"
    return next(filter(None, (_lacking(weights, shapes) for shapes in passes)), None)


def _lacking(weights: Sequence[Any], seen: Iterable[Sequence[int]]) -> str | None:
    left = [sorted(shape) for shape in seen]
    lacking = total = unseen = 0
    for shapes in weights:
        fits = [each for shape in shapes for each in left if _fits(each, sorted(shape))]
        found = min(fits, key=sum, default=None)  # with the least padding
        total += prod(shapes[0])
        if found is None:
            lacking, unseen = lacking + prod(shapes[0]), unseen + 1
        else:
            left.remove(found)
    if lacking <= HIDDEN * total:
        return None
    return f"the products of {unseen} weights are in no execution trace (a compiled kernel or an extension)"


def _fits(shape: Sequence[int], weight: Sequence[int]) -> bool:
    return len(shape) == len(weight) and all(0 <= shape[n] - weight[n] < PAD for n in range(len(shape)))


def _launched_kernel() -> str | None:
    """Return whose Triton kernel was launched, of those that torch.compile has not made."""
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in ("torch", "triton"):
            continue
        for value in [*getattr(module, "__dict__", {}).values()]:
            while str(type(value).__module__).startswith("triton."):
                if getattr(value, "device_caches", None) or getattr(value, "cache", None):
                    return f"Triton kernels of {name}"
                value = getattr(value, "fn", None)
    return None


def _quietly(call: Callable[[], Any]) -> None:
    """Call without the line that torch's observer prints to standard error; what others print passes."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed
        call()
        return
    end, begin = os.pipe()
    os.set_blocking(end, False)
    os.dup2(begin, 2)
    try:
        call()
    finally:
        os.dup2(kept, 2)
        with suppress(OSError):
            for line in os.read(end, 2**16).splitlines(keepends=True):
                if b"Execution Trace Observer" not in line:
                    os.write(kept, line)
        for descriptor in (kept, end, begin):
            os.close(descriptor)

"""Watches a training script from inside its own processes, by public hooks of torch.

Nothing here imports torch: the hooks are set once the script has imported it. A step ends with that of the
optimizer. What it consists of is stamped where torch tells: the forward pass of the outermost module, the
gradient of its output, the end of backward, DDP's buckets, and the DataLoader. A forward pass that does not
train is a part of its step or of a validation (`Probe._settle`). A failure of the probe never reaches the
script.
"""

import atexit
import os
import platform
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import wraps
from importlib.machinery import ModuleSpec
from itertools import islice
from multiprocessing.util import Finalize, register_after_fork
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from mlbench import clock
from mlbench.script import steps, torch_private
from mlbench.script.sender import ADDRESS, OTHERS, Sender

LEARN_STEPS = 3  # from one in which a model was found, in which others are looked for behind it
ASKED = ("data", "start")  # stamps of a DataLoader that is asked
MOST_PARTS = 16  # of a list or dict in which a model's rows are looked for
CHANNELS = 4  # of an image, at most
StepStamps = tuple[Any, list[tuple[str, Any]], dict[int, int]]  # its begin, stamps, and rows by model


def install() -> None:
    """Watch this process if it is one of a measured command, from its first import of torch on."""
    if ADDRESS in os.environ and not any(isinstance(finder, _AfterTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())
        if os.environ.get("RANK", "0") != "0":
            _print_apart()


def _print_apart() -> None:
    """Print where no metric is looked for what would go into the same output as rank 0's."""
    output, _, path = os.environ.get(OTHERS, "").partition(" ")
    with suppress(OSError):  # on another host, or without /proc
        for stream in (1, 2):
            if path and str(os.fstat(stream).st_ino) == output:
                os.dup2(os.open(path, os.O_WRONLY), stream)


def start(torch: Any, *, anew: bool = False) -> "Probe":
    """Return what watches this process, which it does from the first call on; `anew`: for another run."""
    if not _watching:
        _watching.append(Probe(torch))
        _watching[0].watch()
    elif anew:
        _watching[0].restart()
    return _watching[0]


_watching: list["Probe"] = []


class _AfterTorch:
    """Finds torch as the other finders do, and sets the hooks as soon as it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
            start(module)

        spec.loader.exec_module = exec_module
        return spec


class Hook:
    """A hook of torch's that ends the watching, not the script, where it fails; none while torch compiles.

    A copy of a module that has it shares it, and a file of that module has one that does nothing.
    """

    def __init__(self, probe: "Probe", call: Any) -> None:
        self._probe, self._call = probe, call
        self._compiling, self._drawing = probe.torch.compiler.is_compiling, probe.torch.jit.is_tracing
        self._tracing = torch_private.tracing(probe.torch)

    def __call__(self, *arguments: Any) -> None:
        if self._compiling() or self._drawing() or self._tracing() or not self._probe.watching:
            return
        try:
            self._call(*arguments)
        except Exception as error:
            self._probe.fail(error)

    def __deepcopy__(self, memo: Any) -> "Hook":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class Probe:
    """Stamps the steps of this process and sends them.

    - torch: the module, as the script has it.
    """

    def __init__(self, torch: Any) -> None:
        self.watching = True  # until `finish`, or a failure
        self.failure: str | None = None  # why it no longer watches
        self.torch = torch
        self._begin_anew()
        self._modes: set[bool] = set()  # of modules with gradients: training or not
        self._backward = torch_private.backward(torch)
        self._pass = torch_private.NO_BACKWARD  # the last backward pass, of which the end is stamped
        self._loss, self._gradient = Hook(self, self._loss_ended), Hook(self, self._await_end)
        self._search = Hook(self, self._find)
        self._searching: Any = {}  # torch's global hooks, which has it while it searches
        self._key = 0  # its own among them
        self._modules: set[Any] = set()
        self._untrained: WeakSet[Any] = WeakSet()  # of these, those that no forward pass has trained yet
        self._stepped: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # whether an optimizer steps it
        self._graph: Any = None  # the CUDA graph of which a capture has begun last
        self._graphs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # rows of those with a whole step
        self._notes: set[str] = set()
        self.goal: dict[str, Any] = {}  # metric, target and direction, of a script that tells its own
        self.values: list[tuple[float, float]] = []  # moments and values of that metric

    def fail(self, error: Exception) -> None:
        """End the watching, and keep why; before the first steps are taken no record could say it."""
        self.watching, self.failure = False, f"{type(error).__name__}: {error}"
        self._notes.add(f"failure {self.failure}")
        if not self.until:
            sys.stderr.write(f"mlbench: the probe stopped: {self.failure}\n")

    def watch(self) -> None:
        """Set the hooks that need no model."""
        try:
            from torch.nn.modules.module import register_module_forward_pre_hook
            from torch.optim.optimizer import (
                register_optimizer_step_post_hook,
                register_optimizer_step_pre_hook,
            )
            from torch.utils.data import DataLoader

            register_optimizer_step_pre_hook(Hook(self, self._before_optimizer))
            register_optimizer_step_post_hook(Hook(self, self._after_optimizer))
            handle = register_module_forward_pre_hook(self._search)
            self._searching, self._key = handle.hooks_dict_ref(), handle.id
            warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are ")
            self._watch_loader(DataLoader)
            self._watch_graphs(self.torch.cuda)
            torch_private.before_scripting(self.torch, self._unhook)
            os.register_at_fork(after_in_child=self._begin_anew)
            # A process that multiprocessing has forked ends without what atexit has.
            register_after_fork(self, lambda probe: Finalize(None, probe.finish, exitpriority=0))
            Finalize(None, self.finish, exitpriority=0)  # where torch is imported in the fork
            atexit.register(self.finish)
        except (ImportError, AttributeError) as error:
            sys.stderr.write(f"mlbench: this PyTorch cannot be watched: {error}\n")

    def _begin_anew(self, gpu: Any = None) -> None:
        """Begin without steps, in this thread: at first, in a fork, and for another run.

        gpu: the one whose streams are stamped; None: the host's clock, as a fork cannot use CUDA.
        """
        self._gpu = gpu
        self._sender, self._thread = Sender(), threading.get_ident()
        self._steps: list[StepStamps] = []
        self._readings: list[StepStamps] = []  # those that the GPU has passed, with moments in s
        self._request = False  # whether the sender waits for these
        self._reading_at = 0.0  # when they were read last
        self.until = 0.0  # the moment up to which `take` has returned all steps
        self._stamps: list[tuple[str, Any]] = []
        self._rows: dict[int, int] = {}  # of each model in the present step
        self._begin: Any = None  # of the present step
        self._forward = False  # whether one that trains was seen in the present step
        self._inference: Any = None  # the last pass before that: its module, and how many stamps there were
        self._stepping: int | None = None  # the optimizer of which a step has begun, not one within it
        self._depth = self.count = self._learn_until = 0

    def _unhook(self, module: Any) -> Any:
        """Return a module without hooks, which TorchScript would compile; its next call sets them again."""
        self._modules.discard(ref(module))
        return torch_private.without(Hook, module)

    def restart(self) -> None:
        """Watch for another run, by the hooks that are there, and for other models."""
        self._begin_anew(self._gpu)
        self.watching, self.failure = True, None
        self._notes &= {"buckets", "own_hook"}  # of models that are not asked for theirs again
        self._searching[self._key] = self._search

    def _watch_loader(self, loader: Any) -> None:
        """Stamp the making of an iterator, which starts the loader's workers, each batch, and its end."""
        start, watched = self._timed(loader.__iter__, "start"), set[Any]()

        @wraps(loader.__iter__)
        def iterate(loader: Any) -> Any:
            batches = start(loader)
            kind = next((each for each in type(batches).__mro__ if "__next__" in vars(each)), None)
            if kind is not None and kind not in watched:
                watched.add(kind)
                with suppress(TypeError):  # of a class that is not Python's, nothing can be stamped
                    kind.__next__ = self._timed(kind.__next__)
            return batches

        loader.__iter__ = iterate

    def _watch_graphs(self, cuda: Any) -> None:
        """Make a step of each replay of a CUDA graph that holds one, for in a replay no hook is called."""
        begin, replay, make = cuda.CUDAGraph.capture_begin, cuda.CUDAGraph.replay, cuda.make_graphed_callables
        ended = Hook(self, self._end_step)

        @wraps(begin)
        def capture_begin(graph: Any, *arguments: Any, **options: Any) -> None:
            self._graph = graph
            begin(graph, *arguments, **options)

        @wraps(replay)
        def replayed(graph: Any) -> None:
            rows = self._graphs.get(graph)
            if rows is not None:
                self.mark("optimizer")
            replay(graph)
            if rows is not None and self.mark("step") is not None:
                self._rows = {0: rows}
                ended()

        @wraps(make)
        def make_graphed_callables(callables: Any, *arguments: Any, **options: Any) -> Any:
            for each in callables if isinstance(callables, tuple) else (callables,):
                if isinstance(each, self.torch.nn.Module):
                    self._unhook(each)  # torch refuses modules with hooks
            return make(callables, *arguments, **options)

        cuda.CUDAGraph.capture_begin, cuda.CUDAGraph.replay = capture_begin, replayed
        cuda.make_graphed_callables = make_graphed_callables

    def _timed(self, draw: Any, kind: str = "data") -> Any:
        @wraps(draw)
        def timed(loader: Any) -> Any:
            if threading.get_ident() != self._thread:
                return draw(loader)
            self.mark(kind)
            try:
                return draw(loader)
            finally:
                self.mark("data_end")

        return timed

    def _choose_clock(self, weights: Iterable[Any]) -> None:
        """Stamp on the GPU of these weights, if any; what was stamped before stays on the host's clock."""
        if not self.count and self._gpu is None:
            self._gpu = next((weight.device for weight in weights if weight.is_cuda), None)

    def _now(self) -> Any:
        if self._gpu is None:
            return clock.monotonic()
        event = self.torch.cuda.Event(enable_timing=True)
        # By its device: the process may have chosen another one, and backward chooses that of its part.
        event.record(self.torch.cuda.current_stream(self._gpu))
        return event

    def _capturing(self) -> bool:
        """Return whether this thread makes a CUDA graph, in which an event would be a part of the graph."""
        return self._gpu is not None and self.torch.cuda.is_current_stream_capturing()

    def mark(self, kind: str, since: Any = None) -> Any:
        """Stamp that something of the present step ends or begins here (`steps.PART`); return the moment.

        Nothing is stamped, and None returned, once the watching has ended and in the capture of a CUDA graph.
        """
        if not self.watching:
            return None
        try:
            if self._capturing():
                return None
            at = self._now()
            if self._begin is None:
                self._begin = at
            if kind == "data_end":
                self._notes.add("data")
            elif self._inference is not None and kind in ASKED and not self._forward:
                self._settle()
            self._stamps.append((kind, at if since is None else (since, at)))
            return at
        except Exception as error:  # e.g. of CUDA
            return self.fail(error)

    def _find(self, module: Any, args: Any) -> None:
        """Take a module that no other one calls and that has weights for one of the script's models."""
        if self._depth or ref(module) in self._modules:
            return
        weights = [*module.parameters()]
        if any(map(self.torch.nn.parameter.is_lazy, weights)):
            return  # no hook holds on these before a forward pass has given them a shape
        if weights and self._apart():
            self._notes.add("apart")
            self._searching.pop(self._key, None)  # until the step ends: backward may call many modules again
            return
        self._modules.add(ref(module, self._modules.discard))
        if not weights:
            return
        self._choose_clock(weights)
        self._untrained.add(module)
        hooked = self.torch.nn.Module  # TorchScript's modules have these methods, but refuse to be asked
        hooked.register_forward_pre_hook(module, Hook(self, self._before_forward), prepend=True)
        after = Hook(self, self._after_forward)
        hooked.register_forward_hook(module, after, with_kwargs=True, always_call=True)
        for weight in [weight for weight in weights if weight.requires_grad and weight.is_leaf][:1]:
            weight.register_post_accumulate_grad_hook(self._gradient)  # of a pass without the output, too
        self._learn_until = self.count + LEARN_STEPS
        self._before_forward(module, args)

    def _apart(self) -> bool:
        """Return whether this is not the thread that trains, or backward, which may call modules again."""
        return threading.get_ident() != self._thread or self._backward() != torch_private.NO_BACKWARD

    def _before_forward(self, module: Any, args: Any) -> None:
        if self._apart():
            return
        self._depth += 1
        if self._depth > 1:
            return
        self._searching.pop(self._key, None)  # inner modules need no hook, and compiled ones should see none
        if self._trains(module):
            self._stepping = None  # this is its closure, or its step has raised
            self._forward = True
            self._notes.add("forward")
            if module in self._untrained:  # not earlier, for the script may give a model a hook of its own
                self._untrained.discard(module)
                for part in module.modules():
                    if isinstance(part, self.torch.nn.parallel.DistributedDataParallel):
                        self._watch_buckets(part)
        elif self._stamps and self._stamps[-1][0] == "inference_end":
            del self._stamps[-1]  # such passes in a row are one
            return
        self.mark("forward")

    def _after_forward(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if self._apart() or not self._depth:
            return
        self._depth -= 1
        if self._depth:
            return
        # By the same key: another has functions compiled again.
        if self.count < self._learn_until or not self._forward:
            self._searching[self._key] = self._search
        if not self._trains(module):
            self.mark("inference_end")
            if not self._forward:
                self._inference = ref(module), len(self._stamps)
            return
        self.mark("forward_end")
        self._rows[id(module)] = self._rows.get(id(module), 0) + _rows((*args, *kwargs.values()))
        if (tensor := _with_gradient(output)) is not None:
            tensor.register_hook(self._loss)

    def _trains(self, module: Any) -> bool:
        """Return whether a forward pass trains; eval() does only where a script never says train()."""
        if not self.torch.is_grad_enabled():
            return False
        self._modes.add(module.training)
        return module.training or True not in self._modes

    def _loss_ended(self, gradient: Any) -> None:
        """Stamp an output's gradient: those after the first of a pass come when it has computed others."""
        self.mark("backward_end" if self._backward() == self._pass else "loss_end")
        self._await_end(gradient)

    def _await_end(self, _: Any) -> None:
        """Have the end of this backward pass stamped."""
        number = self._backward()
        if number not in (self._pass, torch_private.NO_BACKWARD):
            self._pass = number
            torch_private.after_backward(self.torch, lambda: self.mark("backward_end"))

    def _settle(self, optimizer: Any = None) -> None:
        """Make a validation of what lies before the training forward pass, up to the last one before that.

        It is one where a DataLoader is asked between the two, or where none was asked and the step's
        optimizer has a weight of its module, unlike one of a teacher.
        """
        (called, count), self._inference = self._inference, None
        module = called()
        if optimizer is not None:
            if module is None or any(kind in ASKED for kind, _ in self._stamps[:count]):
                return
            if module not in self._stepped:
                weights = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
                self._stepped[module] = not weights.isdisjoint(map(id, module.parameters()))
            if not self._stepped[module]:
                return
        self._stamps[:count] = [("validation_end", self._stamps[count - 1][1])]

    def _watch_buckets(self, model: Any) -> None:
        dist = self.torch.distributed
        if not 1 < dist.get_world_size(model.process_group) == dist.get_world_size():
            return
        state = self, model.process_group
        hooked = torch_private.add_comm_hook(model, state, _timed_all_reduce)
        self._notes.add("buckets" if hooked else "own_hook")

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._stepping in (None, id(optimizer)):
            self._stepping = id(optimizer)
            # Its step may be the first thing that is seen: libraries make one to fill its state.
            self._choose_clock(weight for group in optimizer.param_groups for weight in group["params"])
            self.mark("optimizer")

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._stepping not in (None, id(optimizer)):
            return
        self._stepping = None
        if self._backward() != torch_private.NO_BACKWARD:
            self._notes.add("fused")
        again = not self._forward and "forward" in self._notes  # another of the same step
        if self._capturing():
            self._notes.add("graph")
            self._graphs[self._graph] = self._graphs.get(self._graph, 0) + max(self._rows.values(), default=0)
            self._rows, self._forward = {}, False
            return
        if self.mark("optimizer_end" if again else "step") is None or again:
            return  # its time is a part of the next
        if self._inference is not None:
            self._settle(optimizer)
        self._end_step()

    def _end_step(self) -> None:
        self._steps.append((self._begin, self._stamps, self._rows))
        self._begin, self._stamps, self._rows, self._forward = self._stamps[-1][1], [], {}, False
        self.count += 1
        self._depth = 0  # also where a forward pass was interrupted
        self._searching[self._key] = self._search
        if self.count == 1:
            self._sender.start(self)
        if self._request:
            self._read_events()

    def _read_events(self) -> None:
        """Turn the events that the GPU has passed into moments in s.

        Only where the script trains: a call of CUDA from another thread can end its capture of a CUDA graph.
        """
        self._request, begin, count = False, clock.monotonic(), len(self._steps)
        while count and not self._steps[count - 1][1][-1][1].query():
            count -= 1
        device = self._sender.device
        self._readings += [device.seconds(self.torch, self._gpu, *step) for step in self._steps[:count]]
        del self._steps[:count]
        self._reading_at = begin  # last, as `take` asks for it first

    def take(self, *, wait: bool) -> list[steps.Step]:
        """Return the steps that were not taken yet, in s; on a GPU those that were read since the last call.

        wait: wait for the GPU, and read; only the thread that trains may.
        """
        if self._gpu and wait:
            self.torch.cuda.synchronize(self._gpu)
            self._read_events()
        self._request = bool(self._gpu) and not wait  # for the next call
        self.until = self._reading_at if self._gpu else clock.monotonic()
        ended = self._readings if self._gpu else self._steps
        complete = ended[:]
        del ended[: len(complete)]
        return [
            steps.assemble(stamps, begin=begin, rows=max(rows.values(), default=0))
            for begin, stamps, rows in complete
        ]

    def describe(self) -> dict[str, Any]:
        """Return who this process is, and what of its training can be seen."""
        dist = self.torch.distributed
        together = dist.is_available() and dist.is_initialized()
        return {
            "rank": dist.get_rank() if together else int(os.environ.get("RANK", "0")),
            "world": dist.get_world_size() if together else int(os.environ.get("WORLD_SIZE", "1")),
            "backend": dist.get_backend() if together else None,
            "device": "cuda" if self._gpu else "cpu",
            "threads": self.torch.get_num_threads(),
            "host": platform.node(),
            "cpus": sorted(os.sched_getaffinity(0)),
        }

    def peak_bytes(self) -> int | None:
        """Return the most bytes that torch's allocator gave out on this process's GPU; None on a CPU."""
        return self.torch.cuda.max_memory_allocated(self._gpu) if self._gpu else None

    def notes(self) -> list[str]:
        """Return what of the training was seen."""
        return sorted(self._notes)

    def finish(self) -> None:
        """Send the rest and stop."""
        self._sender.finish(self)
        self.watching = False
        self._searching.pop(self._key, None)


def _rows(inputs: Any, *, deep: int = 2) -> int:
    """Return the first dimension of the first tensor of a model's inputs, also in lists and dicts; else 0.

    A list of tensors of shape [channels, height, width] has a row each.
    """
    for value in inputs:
        if getattr(value, "ndim", 0):
            return value.shape[0]
        if not deep or not isinstance(value, (Mapping, list, tuple)):
            continue
        parts = list(islice(value.values() if isinstance(value, Mapping) else value, MOST_PARTS))
        images = [part for part in parts if getattr(part, "ndim", 0) == 3 and len(part) <= CHANNELS]
        if isinstance(value, list) and len(parts) == len(images) > 0:
            return len(value)
        if rows := _rows(parts, deep=deep - 1):
            return rows
    return 0


def _with_gradient(output: Any) -> Any:
    """Return the first tensor that a module computed with gradients, also in lists, dicts and dataclasses."""
    if hasattr(output, "grad_fn"):
        return None if output.grad_fn is None else output
    if isinstance(output, (tuple, list, Mapping)):
        parts = output.values() if isinstance(output, Mapping) else output
    else:
        parts = (getattr(output, name, None) for name in getattr(output, "__dataclass_fields__", ()))
    return next((tensor for part in parts if (tensor := _with_gradient(part)) is not None), None)


def _timed_all_reduce(state, bucket):  # DDP refuses other annotations than its own
    """Average one bucket, to the last bit as DDP does without a hook, and stamp when it left and came."""
    probe, group = state
    torch = probe.torch
    launch = probe.mark("launch")
    buffer = bucket.buffer().mul_(1.0 / torch.distributed.get_world_size(group))
    work = torch.distributed.all_reduce(buffer, group=group, async_op=True)

    def reduced(future: Any) -> Any:
        probe.mark("reduced", launch)
        return future.value()[0]

    if not bucket.is_last() or buffer.is_cuda:
        return work.get_future().then(reduced)
    work.wait()  # backward has nothing left to overlap with
    probe.mark("reduced", launch)
    done: Any = torch.futures.Future()
    done.set_result(buffer)
    return done

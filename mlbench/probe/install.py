"""Finds torch in a process of a measured command, and watches what it trains from then on."""

from __future__ import annotations

import atexit
import os
import platform
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from multiprocessing.util import Finalize, register_after_fork
from typing import Any

from mlbench.probe import torch_private
from mlbench.probe.collectives import Collectives
from mlbench.probe.flop_counter import FlopCounter
from mlbench.probe.graphs import Graphs
from mlbench.probe.models import Models
from mlbench.probe.recording import Recording
from mlbench.probe.sender import ADDRESS, OTHERS, OUTER, Sender, announce, identity
from mlbench.probe.stamps import Stamp
from mlbench.probe.training import Optimizers, watch_backward, watch_loaders, watch_spans

_probes: list[Probe] = []  # at most one


def install() -> None:
    """Watch this process if it is one of a measured command, from its first import of torch on."""
    if ADDRESS in os.environ and not any(isinstance(finder, _AfterTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())
        announce()
        if place()[0]:
            _print_apart()


def place() -> tuple[int, int]:
    """Return RANK and WORLD_SIZE of a launcher; (0, 1) where the command itself found them set already."""
    names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
    values = [os.environ.get(name, "") for name in names]
    with suppress(ValueError):
        if " ".join(values) != os.environ.get(OUTER):
            return int(values[0] or 0), int(values[1] or 1)
    return 0, 1


def _is_said(rank: int, world: int) -> bool:
    said = os.environ.get("RANK", str(rank)), os.environ.get("WORLD_SIZE", str(world))
    return said == (str(rank), str(world))


def _modules() -> list[Any]:
    return [module for name, module in sys.modules.items() if name.startswith("mlbench.probe.")]


def _print_apart() -> None:
    """Print where no metric is looked for what would go into the same output as rank 0's."""
    words = os.environ.get(OTHERS, "").split()
    paths = dict(zip(words[::2], words[1::2]))  # noqa: B905  (Python 3.9)
    for stream in (1, 2):
        with suppress(OSError):  # closed, on another host, or without /proc
            if path := paths.get(identity(stream)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_NOCTTY), stream)


def start(torch: Any, *, anew: bool = False) -> Probe:
    """Return what watches this process, which it does from the first call on; `anew`: for another run."""
    if not _probes:
        _probes.append(Probe(torch))
        _probes[0].watch()
    elif anew:
        _probes[0].restart()
    return _probes[0]


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
            with suppress(ValueError):
                sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
            try:
                start(module)
            except Exception as error:
                sys.stderr.write(f"mlbench: this PyTorch cannot be watched: {error!r}\n")

        spec.loader.exec_module = exec_module
        return spec


class Probe:
    """Watches this process, and sends its stamps.

    - torch: the module, as the script has it.
    - goal: metric, target and direction, of a script that sets its own. values: moments and values of it.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.recording = Recording(torch, begin=lambda: self._sender.start(self))
        self._graphs = Graphs(self.recording)
        self.flop_counter = FlopCounter(self.recording)
        self._models = Models(self.recording, self._graphs, self.flop_counter)
        self._optimizers = Optimizers(self.recording, self._models, self._graphs, self.flop_counter)
        self._sender = Sender()
        self.goal: dict[str, Any] = {}
        self.values: list[tuple[float, float]] = []

    def watch(self) -> None:
        """Set the hooks, each where this torch has what it needs."""
        recording, torch, interrupt = self.recording, self._torch, self.flop_counter.interrupt
        parts: dict[str, Callable[[], object]] = {
            "optimizers": self._optimizers.watch,
            "models": self._models.watch,
            "backward passes": lambda: watch_backward(recording, torch.autograd, self._models),
            "DataLoaders": lambda: watch_loaders(recording, torch.utils.data.DataLoader),
            "saving": lambda: watch_spans(recording, torch),
            "collectives": Collectives(recording).watch,
            "CUDA graphs": lambda: self._graphs.watch(torch.cuda.CUDAGraph),
            "steps in a compiled function": lambda: torch_private.run_as_written(torch, _modules()),
        }
        if self.flop_counter.asked:
            parts["compilations"] = lambda: recording.until_ready.append(
                lambda: torch_private.watch_compiling(interrupt, lambda *_: None)
            )
        for part, watch in parts.items():
            try:
                watch()
            except Exception as error:
                recording.notes.add(f"lacks {part}")
                recording.swallow(error)
        warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are ")
        os.register_at_fork(before=interrupt, after_in_child=self._in_child)
        # A process that multiprocessing has forked ends without what atexit has.
        register_after_fork(self, lambda probe: Finalize(None, probe.finish, exitpriority=0))
        Finalize(None, self.finish, exitpriority=0)  # where torch is imported in the fork
        atexit.register(self.finish)

    def _in_child(self) -> None:
        self._begin_anew(forked=True)

    def _begin_anew(self, gpu: Any = None, *, forked: bool = False) -> None:
        self.recording.begin_anew(gpu)
        self.flop_counter.restart(forked=forked)
        self._sender = Sender()

    def restart(self) -> None:
        """Watch for another run, by the hooks that are there, and for other models."""
        device = self.recording.device
        self._begin_anew(device and device.gpu)
        self.recording.watching, self.recording.failure = True, None
        self.recording.notes &= {"buckets", "own_hook"}  # of models that are not asked for theirs again
        self._models.restart()

    def mark(self, kind: int) -> None:
        """Stamp what the script reports itself."""
        self.recording.guarded(self.recording.mark)(kind)

    def take(self, *, wait: bool) -> list[Stamp]:
        """Return the stamps that were not taken yet; wait: until the GPU has passed them."""
        return self.recording.take(wait=wait)

    def describe(self) -> dict[str, Any]:
        """Return who this process is, and on what it trains."""
        dist = self._torch.distributed
        rank, world = place()
        together = dist.is_available() and dist.is_initialized()
        if not together and not _is_said(rank, world):
            self.recording.notes.add("outer_rank")
        return {
            "rank": dist.get_rank() if together else rank,
            "world": dist.get_world_size() if together else world,
            "backend": dist.get_backend() if together else None,
            "device": "cuda" if self.recording.device else "cpu",
            "threads": self._torch.get_num_threads(),
            "host": platform.node(),
            "cpus": sorted(os.sched_getaffinity(0)),
        }

    def peak_bytes(self) -> int | None:
        """Return the most bytes that torch's allocator gave out on this process's GPU; None on a CPU."""
        device = self.recording.device
        return self._torch.cuda.max_memory_allocated(device.gpu) if device else None

    def trained(self) -> bool:
        """Return whether something was seen that may be a step."""
        return bool(self.recording.steps or self.recording.passes)

    def finish(self) -> None:
        """Send the rest and stop."""
        self.flop_counter.end()
        self._sender.finish(self)
        self.recording.watching = False
        self._models.stop()

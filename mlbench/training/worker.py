"""One of the processes that train together, as a task sees it. It can be built without Ray."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F

from mlbench.config.experiment import SyncConfig
from mlbench.config.goal import Goal
from mlbench.record.messages import Heartbeat, Report
from mlbench.training.sync import ddp
from mlbench.training.timer import PhaseTimer

State = dict[str, Any]  # of a checkpoint: tensors and plain values


def _discard(_: Any, __: Any = None) -> None:
    """Discard a report."""


@dataclass
class Worker:
    """A rank, its device, and its lines to the outside.

    - report_validation: takes validations (JSON types) and, if checkpoints are kept, the state to resume
      from. Every rank calls it at the same point. It may wait for the others.
    - heartbeat: takes what to show (JSON types). Never waits, may get lost.
    - resume: the state of the last checkpoint after a restart, else None.
    - read_energy: joules of this node by part since some moment. Empty if nothing can be read, and on all but
      the first rank of a node.
    - compile: torch.compile's backend, or its name. None: nothing is compiled.
    - profile_steps: how many steps torch.profiler records. 0: it is not used.
    - control: a gloo group next to the training's group, for small objects and for naming a missing rank.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    data_root: Path = Path("data")
    sync: SyncConfig = field(default_factory=lambda: ddp.Config(name="ddp", bucket_cap_mb=25))
    backend: str = "gloo"  # the name in conf/backend
    timer: PhaseTimer = field(default_factory=PhaseTimer)
    goal: Goal | None = None
    report_validation: Callable[[Report, State | None], None] = _discard
    heartbeat: Callable[[Heartbeat], None] = _discard
    keep_checkpoints: bool = False
    resume: State | None = None
    compile: str | Callable[..., Any] | None = None
    profile_steps: int = 0
    read_energy: Callable[[], dict[str, float]] = dict
    control: dist.ProcessGroup | None = None
    transport: dict[str, str] = field(default_factory=dict)  # what the backend chose, from its log
    drain_node_metrics: Callable[[], list[dict[str, Any]]] = list  # this node's since the last call

    def sum(self, values: list[float] | torch.Tensor) -> torch.Tensor:
        """Return the sum over all workers in float64, the exact way to a global metric."""
        total = torch.as_tensor(values, dtype=torch.float64, device=self.device).clone()
        if self.world_size > 1:
            dist.all_reduce(total)
        return total

    def mean(self, value: float) -> float:
        """Return the mean of every worker's value."""
        return self.sum([value]).item() / self.world_size

    def gather(self, item: Any) -> list[Any]:
        """Return `item` (JSON types) of every rank, in rank order, on every rank.

        It travels as JSON over the control group: what another process sends is never unpickled.
        """
        if self.world_size == 1:
            return [item]
        text = torch.frombuffer(bytearray(json.dumps(item).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([len(text)]), group=self.control)
        longest = max(int(size) for size in sizes)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
        dist.all_gather(texts, F.pad(text, (0, longest - len(text))), group=self.control)
        return [json.loads(bytes(text[: int(size)].numpy())) for text, size in zip(texts, sizes, strict=True)]

    def barrier(self) -> None:
        """Wait for all workers."""
        if self.world_size > 1:
            dist.barrier(group=self.control)

    def reset_peak_memory(self) -> None:
        """Forget what this rank's GPU has held so far, e.g. to calibrate it."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_memory_bytes(self) -> int | None:
        """Return the most bytes that torch's allocator gave out on this rank's GPU since. None on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    def generator(self, *numbers: int) -> torch.Generator:
        """Return randomness fixed by the seed and `numbers`, e.g. (epoch,), the same on every rank.

        Mixed so that neighbouring seeds and epochs share nothing (Steele et al. 2014, SplitMix64).
        """
        state = _mix(self.seed)  # or seed 1 in epoch 0 had what seed 0 has in epoch 1
        for number in numbers:
            state = _mix(state + number + 1)
        return torch.Generator(self.device).manual_seed(_mix(state) >> 1)


def control_group(timeout_s: float) -> dist.ProcessGroup:
    """Return a new gloo group of all ranks, for `Worker.control`. Every rank must call this."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)))


def _mix(state: int) -> int:
    mask = 2**64 - 1
    state = (state + 0x9E3779B97F4A7C15) & mask
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    return state ^ (state >> 31)

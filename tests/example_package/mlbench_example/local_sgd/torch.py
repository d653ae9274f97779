"""Averages of the models after every few steps."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn

from mlbench.training.timer import PhaseTimer
from mlbench_example.local_sgd import Config


def synchronise(model: nn.Module, config: Config, timer: PhaseTimer) -> "LocalSgd":
    """Return the bare model with averages between the optimizer's steps."""
    return LocalSgd(model, config.every)


@dataclass(frozen=True)
class LocalSgd:
    """Every worker trains its own model, which `average` makes one."""

    module: nn.Module
    every: int

    def accumulating(self) -> AbstractContextManager:
        return nullcontext()

    def after_step(self, step: int) -> None:
        if (step + 1) % self.every == 0:
            self.average()

    def before_validation(self) -> None:
        self.average()

    def average(self) -> None:
        """Replace parameters and buffers by their mean over the workers."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.is_floating_point():
                dist.all_reduce(tensor.data)
                tensor.data /= dist.get_world_size()

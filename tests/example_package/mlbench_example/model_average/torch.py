"""Averages of the models after every few steps."""

import torch
from torch import nn

from mlbench.training.sync.strategy import BareModel
from mlbench.training.sync.wire import Wire
from mlbench.training.worker import Worker
from mlbench_example.model_average import Config


def synchronise(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: Config, worker: Worker
) -> "ModelAverage":
    """Return the bare model with averages between the optimizer's steps."""
    return ModelAverage(model, config.every, Wire(worker))


class ModelAverage(BareModel):
    """Every worker trains its own model, which becomes the mean of all."""

    def __init__(self, model: nn.Module, every: int, wire: Wire) -> None:
        super().__init__(model, wire)
        self.every, self.exchange = every, wire
        tensors = (*model.parameters(), *model.buffers())
        self.tensors = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]

    def after_step(self, step: int) -> None:
        if (step + 1) % self.every == 0:
            with self.exchange.stamped():
                self.exchange.average(self.tensors)
            self.exchange.timer.end_phase("transfer")

    def before_validation(self) -> None:
        self.exchange.average(self.tensors)

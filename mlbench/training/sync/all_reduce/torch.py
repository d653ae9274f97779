"""Gradients or weights averaged after backward, with nothing hidden."""

from contextlib import AbstractContextManager

import torch
from torch import nn

from mlbench.training.sync.all_reduce import Config
from mlbench.training.sync.gradients import GradientAverage
from mlbench.training.sync.strategy import BareModel
from mlbench.training.sync.wire import Wire
from mlbench.training.worker import Worker


def synchronise(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: Config, worker: Worker
) -> "Gradients | Weights":
    """Return the bare model with averages after backward or after the optimizer's step."""
    wire = Wire(worker)
    return Gradients(model, wire, config) if config.quantity == "gradients" else Weights(model, wire, config)


class Gradients(BareModel):
    """Every gradient is the mean over the workers when backward ends."""

    def __init__(self, model: nn.Module, wire: Wire, config: Config) -> None:
        super().__init__(model, wire)
        self.gradients = GradientAverage(model, wire, config.message)

    def accumulating(self) -> AbstractContextManager:
        """Return a context in which backward only accumulates."""
        return self.gradients.accumulating()


class Weights(BareModel):
    """Every worker steps with its local gradient and momentum. Then the weights become their mean.

    If a step is linear in gradient and momentum, as SGD's is, the steps equal those with averaged gradients,
    to rounding. With Adam, clipping, or a skipped step they differ.
    """

    def __init__(self, model: nn.Module, wire: Wire, config: Config) -> None:
        super().__init__(model, wire)
        self.message, self.exchange = config.message, wire
        self.weights = [weight.detach() for weight in model.parameters() if weight.requires_grad]

    def after_step(self, step: int) -> None:
        """Average the weights."""
        with self.exchange.stamped():
            self.exchange.average(self.weights, self.message)
        self.exchange.timer.end_phase("transfer")

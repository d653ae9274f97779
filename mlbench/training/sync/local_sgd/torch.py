"""Local SGD, post-local SGD and DiLoCo, which differ in their beginning and in the outer step."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from mlbench.training.sync.gradients import GradientAverage
from mlbench.training.sync.local_sgd import Config
from mlbench.training.sync.strategy import OwnModels
from mlbench.training.sync.wire import Wire
from mlbench.training.worker import Worker


def synchronise(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: Config, worker: Worker
) -> "LocalSgd":
    """Return the bare model with averages between the optimizer's steps."""
    return LocalSgd(model, config, Wire(worker))


class LocalSgd(OwnModels):
    """Each worker steps alone. After every few steps an outer step follows, on the mean of the models.

    With x the model that all had after the last outer step and D = x - mean of the workers' models, the outer
    step is torch's SGD on D. It is m = outer_momentum m + D, x = x - outer_lr m, or with Nesterov's momentum
    x = x - outer_lr (D + outer_momentum m). With rate 1 and no momentum x is the mean (Stich 2018).
    """

    def __init__(self, model: nn.Module, config: Config, wire: Wire) -> None:
        super().__init__(model, wire)
        self.config = config
        self.gradients = GradientAverage(model, wire, "flat") if config.start_step else None
        self.anchors: list[torch.Tensor] = []  # x, empty if the step is the plain average
        if config.outer_lr != 1 or config.outer_momentum:
            self.anchors = [weight.clone() for weight in self.weights]
            self.outer = torch.optim.SGD(
                self.anchors,
                lr=config.outer_lr,
                momentum=config.outer_momentum,
                nesterov=config.nesterov,
            )

    def accumulating(self) -> AbstractContextManager:
        """Return a context in which backward only accumulates."""
        return self.gradients.accumulating() if self.gradients is not None else nullcontext()

    def after_step(self, step: int) -> None:
        """Make the outer step when it is due."""
        alone = step + 1 - self.config.start_step  # steps that the workers made alone
        if alone <= 0:
            if alone == 0 and self.gradients is not None:
                self.gradients.enabled = False
                for anchor, weight in zip(self.anchors, self.weights, strict=False):
                    anchor.copy_(weight)
            return
        if alone % self.config.every:
            return
        timer = self.exchange.timer
        with self.exchange.stamped():
            self.exchange.average(self.weights)
        timer.end_phase("transfer")
        if self.anchors:
            for anchor, average in zip(self.anchors, self.weights, strict=True):
                anchor.grad = anchor - average
            self.outer.step()
            for anchor, weight in zip(self.anchors, self.weights, strict=True):
                weight.copy_(anchor)
            timer.end_phase("optimizer")

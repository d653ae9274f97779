"""The interface between the loop and a sync strategy."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from mlbench.config import plugins
from mlbench.training.sync.wire import Wire, connect, float_buffers
from mlbench.training.worker import Worker


class BareModel:
    """A model without a wrapper, and the base of all strategies.

    As it is, it combines nothing but buffers for a validation. With one worker that is all there is (wire
    None), so that the base of every speed-up carries no cost of distribution.

    - module: what the loop trains.
    """

    def __init__(self, module: nn.Module, wire: Wire | None = None) -> None:
        self.module, self.wire = module, wire

    def accumulating(self) -> AbstractContextManager:
        """Return a context in which backward only accumulates, for all but a step's last micro-batch."""
        return nullcontext()

    def after_step(self, step: int) -> None:
        """Run after the optimizer's step `step`, counted from 0, on the clock."""

    def before_validation(self) -> None:
        """Give all workers one model and whole weights to validate, on the clock."""
        if self.wire is not None:
            self.wire.average(float_buffers(self.module))

    def after_validation(self) -> None:
        """Go back to what training goes on with, if that is something else. On the clock."""

    def bytes_sent(self, steps: int) -> int:
        """Return the bytes that this rank has sent, in `steps` steps and for validations."""
        return 0 if self.wire is None else self.wire.sent


class OwnModels(BareModel):
    """Every worker trains a separate model. A validation sees the mean and changes nothing.

    - weights: the trained ones, without their gradients.
    """

    def __init__(self, module: nn.Module, wire: Wire) -> None:
        super().__init__(module, wire)
        self.exchange = wire
        self.weights = [weight.detach() for weight in module.parameters() if weight.requires_grad]
        self._own: list[torch.Tensor] = []  # while a validation goes on

    def before_validation(self) -> None:
        """Make weights and buffers their mean over the workers, and keep this worker's model."""
        tensors = [*self.weights, *float_buffers(self.module)]
        self._own = [tensor.clone() for tensor in tensors]
        self.exchange.average(tensors)

    def after_validation(self) -> None:
        """Go back to this worker's model."""
        tensors = [*self.weights, *float_buffers(self.module)]
        for tensor, own in zip(tensors, self._own, strict=True):
            tensor.copy_(own)
        self._own = []


def synchronise(model: nn.Module, optimizer: torch.optim.Optimizer, worker: Worker) -> BareModel:
    """Return `model` under the strategy that the worker's configuration names."""
    if worker.world_size == 1:
        return BareModel(model)
    connect(worker)
    strategy = plugins.implementation("sync", worker.sync.name)
    return strategy.synchronise(model, optimizer, worker.sync, worker)

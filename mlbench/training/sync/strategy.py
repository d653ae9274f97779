"""What the loop asks of a sync strategy."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from mlbench.config import plugins
from mlbench.training.sync.wire import Wire, connect, float_buffers

if TYPE_CHECKING:
    from mlbench.training.worker import Worker


class Sync(Protocol):
    """A model under a strategy."""

    @property
    def module(self) -> nn.Module:
        """What the loop trains."""
        ...

    def accumulating(self) -> AbstractContextManager:
        """Return a context in which backward only accumulates; for all but a step's last micro-batch."""
        ...

    def after_step(self, step: int) -> None:
        """Run after the optimizer's step `step`, counted from 0; on the clock."""
        ...

    def before_validation(self) -> None:
        """Give all workers one model and whole weights to validate; on the clock."""
        ...

    def after_validation(self) -> None:
        """Go back to what training goes on with, where that is something else; on the clock."""
        ...

    def bytes_sent(self, steps: int) -> int:
        """Return the bytes that this rank has sent to combine gradients or models in `steps` steps."""
        ...


class BareModel:
    """A model without a wrapper: what the strategies have in common that act between the steps.

    As it is, it does nothing. With one worker that is all there is (wire None), so that the base of every
    speed-up carries no cost of distribution.
    """

    def __init__(self, module: nn.Module, wire: Wire | None = None) -> None:
        self.module, self.wire = module, wire

    def accumulating(self) -> AbstractContextManager:
        """Return a context that changes nothing."""
        return nullcontext()

    def after_step(self, step: int) -> None:
        """Do nothing."""

    def before_validation(self) -> None:
        """Make the buffers one."""
        if self.wire is not None:
            self.wire.average(float_buffers(self.module))

    def after_validation(self) -> None:
        """Do nothing."""

    def bytes_sent(self, steps: int) -> int:
        """Return the bytes that this rank has sent."""
        return 0 if self.wire is None else self.wire.sent


def synchronise(model: nn.Module, optimizer: torch.optim.Optimizer, worker: "Worker") -> Sync:
    """Return `model` under the strategy that the worker's configuration names."""
    if worker.world_size == 1:
        return BareModel(model)
    connect(worker)
    strategy = plugins.implementation("sync", worker.sync.name)
    return strategy.synchronise(model, optimizer, worker.sync, worker)

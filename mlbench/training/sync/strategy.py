"""What the loop asks of a sync strategy."""

from contextlib import AbstractContextManager
from typing import Protocol

from torch import nn

from mlbench.experiment import plugins
from mlbench.experiment.config import Sync as Config
from mlbench.training.timer import PhaseTimer


class Sync(Protocol):
    """A model under a strategy. With one worker `module` is the bare model and the rest does nothing."""

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
        """Make the workers' models one; on the clock."""
        ...


def synchronise(model: nn.Module, config: Config, timer: PhaseTimer) -> Sync:
    """Return `model` under the strategy that `config` names."""
    return plugins.implementation("sync", config.name).synchronise(model, config, timer)

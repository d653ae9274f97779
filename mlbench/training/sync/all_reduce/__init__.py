"""Gradients or weights averaged after backward, with nothing hidden: what one writes by hand."""

from typing import Literal

from mlbench.config.experiment import SyncConfig


class Config(SyncConfig):
    """What conf/sync/all_reduce.yaml holds."""

    quantity: Literal["gradients", "weights"]
    message: Literal["flat", "layer"]

    @property
    def restarts(self) -> bool:
        """Whether the workers' optimizers are alike."""
        return self.quantity == "gradients"

    @property
    def own_steps(self) -> bool:
        """Whether weights are averaged."""
        return self.quantity == "weights"

"""Workers with a model each; the mean of all is validated, and each one trains its own."""

import torch
from torch import nn

from mlbench.training.sync.strategy import BareModel
from mlbench.training.sync.wire import Wire, float_buffers


class OwnModels(BareModel):
    """Every worker trains its own model; a validation sees the mean and changes nothing.

    - weights: the trained ones, without their gradients.
    """

    def __init__(self, module: nn.Module, wire: Wire) -> None:
        super().__init__(module, wire)
        self.exchange = wire
        self.weights = [weight.detach() for weight in module.parameters() if weight.requires_grad]
        self._own: list[torch.Tensor] = []  # while a validation goes on

    def before_validation(self) -> None:
        """Make weights and buffers their mean over the workers, and keep this worker's own."""
        tensors = [*self.weights, *float_buffers(self.module)]
        self._own = [tensor.clone() for tensor in tensors]
        self.exchange.average(tensors)

    def after_validation(self) -> None:
        """Go back to this worker's own."""
        tensors = [*self.weights, *float_buffers(self.module)]
        for tensor, own in zip(tensors, self._own, strict=True):
            tensor.copy_(own)
        self._own = []

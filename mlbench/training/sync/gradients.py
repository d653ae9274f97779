"""Gradients averaged when backward has ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from mlbench.training.sync.wire import Wire


class GradientAverage:
    """Averages the gradients of a bare model over the workers at the end of every backward pass.

    It runs inside backward, so that time from its begin on is communication that nothing hides.

    - enabled: false leaves every worker its local gradients.
    """

    def __init__(self, model: nn.Module, wire: Wire, message: str) -> None:
        self.enabled = True
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._wire, self._message = wire, message
        self._queued = False
        for weight in self._weights:
            weight.register_post_accumulate_grad_hook(self._arrived)

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Average nothing in this context."""
        before, self.enabled = self.enabled, False
        try:
            yield
        finally:
            self.enabled = before

    def _arrived(self, _: torch.Tensor) -> None:
        if self.enabled and not self._queued:
            self._queued = True
            engine = cast(Any, torch.autograd.Variable)._execution_engine
            engine.queue_callback(self._average)  # when this backward pass has ended

    def _average(self) -> None:
        self._queued = False
        for weight in self._weights:
            if weight.grad is None:  # unused in this batch, perhaps not on the other ranks
                weight.grad = torch.zeros_like(weight)
        with self._wire.stamped():
            self._wire.average([cast(torch.Tensor, weight.grad) for weight in self._weights], self._message)

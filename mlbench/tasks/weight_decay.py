"""Which weights decay: those of products and convolutions."""

from typing import Any

from torch import nn


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the weights as an optimizer's groups: those that decay, and biases and norms, which do not."""
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]

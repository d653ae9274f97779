"""L2-regularised logistic regression: a linear map without bias, and its convex loss."""

import torch.nn.functional as F
from torch import Tensor, nn


def linear(features: int) -> nn.Linear:
    """Return a map from rows (batch, `features`) to one logit each (batch, 1), without bias."""
    return nn.Linear(features, 1, bias=False)


def cross_entropy(logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return the mean, or by `reduction` the sum, of the rows' binary cross-entropies in nats, a scalar.

    `logits` is (batch, 1), `labels` (batch,) with 0 and 1 of any type. The mean over workers with
    equal batches is that of the joined batch, so averaged gradients are exact.
    """
    return F.binary_cross_entropy_with_logits(logits.squeeze(1), labels.to(logits), reduction=reduction)


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many of the rows lie on their label's side of probability 1/2, a scalar count.

    A logit of exactly 0 counts as label 0.
    """
    return ((logits.squeeze(1) > 0) == (labels > 0)).sum()

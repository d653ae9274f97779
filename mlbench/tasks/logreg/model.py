"""L2-regularised logistic regression: a linear map without bias, and its convex loss."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """Rows [batch, features] to one logit each [batch], without bias. Weights as torch.nn.Linear draws them.

    One vector of weights: torch.nn.Linear's product of two matrices costs a tenth of a short step more.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features))
        nn.init.uniform_(self.weight, -(features**-0.5), features**-0.5)

    def forward(self, rows: Tensor) -> Tensor:
        return rows @ self.weight


def cross_entropy(logits: Tensor, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return the mean, or by `reduction` the sum, of the rows' binary cross-entropies in nats, a scalar.

    `logits` and `labels` are (batch,), labels with 0 and 1 of any type. The mean over workers with
    equal batches is that of the joined batch, so averaged gradients are exact.
    """
    if labels.dtype != logits.dtype:
        labels = labels.to(logits)
    return F.binary_cross_entropy_with_logits(logits, labels, reduction=reduction)


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many of the rows lie on their label's side of probability 1/2, a scalar count.

    A logit of exactly 0 counts as label 0.
    """
    return ((logits > 0) == (labels > 0)).sum()

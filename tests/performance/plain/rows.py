"""Logistic regression."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from plain import Plain


def logistic(config: Any, *, features: int) -> Plain:
    """Return a linear layer with L2-regularised binary cross-entropy under SGD."""
    model = nn.Linear(features, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, weight_decay=config.l2, foreach=False)

    def step(batches: Sequence[Any]) -> torch.Tensor:
        (batch,) = batches
        logits = model(batch.features).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(logits, batch.labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Plain(model, optimizer, step)

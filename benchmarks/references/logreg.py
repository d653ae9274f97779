"""Logistic regression: one vector of weights, and SGD without the optimizer's book-keeping."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from references import COMMON, Data, Reference, Words, column, main, speed

VARIANTS = ("weights=matrix", "optimizer=fused", *COMMON)


class Rows(NamedTuple):
    """Features [n, f] and labels [n]."""

    features: Tensor
    labels: Tensor


class Vector(nn.Module):
    """A linear map to one number without bias."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(features).uniform_(-(features**-0.5), features**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def build(config: Any, size: int, overrides: Words) -> Reference:
    """Return L2-regularised binary cross-entropy under SGD."""
    matrix = overrides.get("weights") == "matrix"
    model = nn.Linear(size, 1, bias=False) if matrix else Vector(size)
    optimizer = torch.optim.SGD(model.parameters(), config.lr, weight_decay=config.l2, **speed(overrides))

    def loss(net: nn.Module, batch: Any) -> Tensor:
        logits = net(batch.features)
        return F.binary_cross_entropy_with_logits(logits.squeeze(1) if matrix else logits, batch.labels)

    (weight,) = model.parameters()
    values = weight.detach()

    def by_hand() -> None:
        rate = optimizer.param_groups[0]["lr"]
        assert weight.grad is not None
        values.mul_(1 - rate * config.l2).sub_(weight.grad, alpha=rate)
        weight.grad = None

    return Reference(model, optimizer, loss, step=None if "optimizer" in overrides else by_hand)


def load(config: Any, folder: Path, rank: int, size: int) -> Data:
    """Return shuffled rows of the training split."""
    train = folder / "train.arrow"
    features, labels = column(train, "features"), column(train, "label")

    def steps(epoch: int) -> Iterator[list[Rows]]:
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        count = len(order) // (config.batch_size * size)
        for chosen in order[: count * config.batch_size * size].view(count, size, -1)[:, rank]:
            yield [Rows(features.index_select(0, chosen), labels.index_select(0, chosen))]

    return Data(features.shape[1], steps, lambda rows: len(rows.labels))


if __name__ == "__main__":
    main()

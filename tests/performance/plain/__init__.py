"""Every task's step again, as a training script without any measuring has it.

What our loop is compared with. Models are built of torch's and torchvision's layers and share no code with
those of the tasks. Optimizers are torch's, in the form that is fastest on a CPU (torch 2.13, 2026-11-21).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn


class Plain(NamedTuple):
    """A model, its optimizer, and one step over its micro-batches, which returns their summed loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[Sequence[Any]], torch.Tensor]


def build(config: Any, model: nn.Module) -> Plain:
    """Return the plain form of the task that `config` describes; `model`, ours, tells its data's sizes."""
    from plain import images, rows, text, translation

    sizes: Any = model
    if config.name == "logreg":
        return rows.logistic(config, features=len(sizes.weight))
    if config.name == "resnet20":
        return images.small(config)
    if config.name == "resnet50":
        return images.large(config, classes=sizes.fc.out_features)
    if config.name == "awdlstm":
        return text.language_model(config, vocabulary=len(sizes.words))
    return translation.translator(config, vocabulary=sizes.embedding.num_embeddings)

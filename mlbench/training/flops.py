"""How much arithmetic a model needs to learn from one sample, counted by torch on the meta device."""

import copy
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn


def training_flops(
    model: nn.Module,
    inputs: Sequence[Any],
    loss_of_output: Callable[[Any], torch.Tensor],
    *,
    samples: int | None = None,
) -> float:
    """Return the model FLOPs of one sample's forward and backward pass in training mode.

    `inputs` are the model's arguments. Tensors among them count by shape and type only. `samples` is how many
    samples (images, rows, tokens) they hold, by default the first one's first dimension. `loss_of_output`
    makes a scalar of the output, which is on the meta device. Labels must be made there too, e.g.
    `torch.zeros(len(output), device=output.device)`. Nothing is computed, and model, inputs and random state
    stay as they are.

    Convention (that of MFU in Chowdhery et al. 2022, PaLM, appendix B): a multiplication with its addition is
    two FLOPs. Only what the gradients need is counted, so nothing for the gradient of the network's inputs
    and nothing for the optimizer. `torch.utils.flop_counter` has formulas for matrix products, convolutions
    and attention (a causal mask halves nothing). Element-wise operations, normalisation, pooling, soft-max,
    dot products of vectors and embeddings have none and count as 0. Fused recurrent kernels have none either,
    but on the meta device they are split into products.
    """
    from torch.utils.flop_counter import FlopCounterMode

    shadow = (_shadows[model] if model in _shadows else _shadow(model)).train()
    moved = [part.to("meta") if isinstance(part, torch.Tensor) else part for part in inputs]
    # torch has no formula for a matrix times a vector
    vector = {torch.ops.aten.mv: lambda matrix, *_, **__: 2 * matrix[0] * matrix[1]}
    with FlopCounterMode(display=False, custom_mapping=vector) as counter:
        loss_of_output(shadow(*moved)).backward()
    return counter.get_total_flops() / (samples or len(inputs[0]))


def keep_shapes(model: nn.Module) -> None:
    """Keep what `training_flops` needs of a model that is about to become one that cannot be copied."""
    _shadows[model] = _shadow(model)


_shadows: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


def _shadow(model: nn.Module) -> nn.Module:
    """Return a copy in which every parameter and buffer is a shape without memory. Tied ones stay tied."""
    shapes: dict[int, Any] = {}
    for buffer in model.buffers():
        shapes[id(buffer)] = torch.empty_like(buffer, device="meta")
    for weight in model.parameters():
        shape = torch.empty_like(weight, device="meta")
        shapes[id(weight)] = nn.Parameter(shape, requires_grad=weight.requires_grad)
    return copy.deepcopy(model, shapes)

"""Additive attention (Bahdanau et al. 2015) with a normalised direction, in bounded memory."""

import math
from typing import Any

import torch
from torch import nn

# Elements of the [sentences, targets, sources, hidden] tensor that exist at a time: 16 MiB of float32 on a
# CPU, 256 MiB on a GPU. Bounds memory, changes no result (2026-11-21)
CHUNK = {"cpu": 2**22, "cuda": 2**26}


class AdditiveAttention(nn.Module):
    """Scores v . tanh(W query + U key + b), a soft-max of them over the source, and the mean of the source.

    The length of v is learned apart from its direction (Salimans & Kingma 2016).
    """

    def __init__(self, hidden: int, *, spread: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden)
        self.direction = nn.Parameter(torch.empty(hidden))
        self.scale = nn.Parameter(torch.tensor(1 / math.sqrt(hidden)))
        nn.init.uniform_(self.query.weight, -spread, spread)
        nn.init.uniform_(self.key.weight, -spread, spread)
        nn.init.zeros_(self.key.bias)
        nn.init.uniform_(self.direction, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))

    def keys(self, memory: torch.Tensor) -> torch.Tensor:
        """Return what `forward` compares queries with. Computed once a sentence."""
        return self.key(memory)

    def forward(
        self, queries: torch.Tensor, keys: torch.Tensor, memory: torch.Tensor, padded: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return contexts [b, t, hidden] and weights [b, t, s] of queries [b, t, hidden].

        keys and memory are [b, s, hidden]. padded [b, s] is true after the end of the source.
        """
        direction = self.direction * (self.scale / self.direction.norm())
        scores = additive_scores(self.query(queries), keys, direction)
        # In float32 also under autocast: the sum of many weights is what coverage looks at.
        weights = scores.float().masked_fill(padded[:, None], -math.inf).softmax(2)
        return torch.bmm(weights.to(memory.dtype), memory), weights


def additive_scores(queries: torch.Tensor, keys: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """Return tanh(queries[b, t] + keys[b, s]) . direction as [b, t, s].

    What does not fit CHUNK is done in parts along the targets, and backward computes its tanh again.
    """
    scores: Any = _AdditiveScores.apply(queries, keys, direction.to(queries.dtype))
    return scores


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: torch.Tensor, keys: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
        parts = _parts(queries, keys)
        scores, active = [], None
        for part in parts:
            active = _active(part, keys)
            scores.append(active @ direction)
        ctx.save_for_backward(queries, keys, direction, active if len(parts) == 1 else None)
        return torch.cat(scores, 1)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        queries, keys, direction, activations = ctx.saved_tensors
        for_queries, for_keys = [], torch.zeros_like(keys)
        for_direction = torch.zeros_like(direction)
        parts = _parts(queries, keys)
        gradients = upstream[0].to(queries.dtype).split(parts[0].shape[1], 1)
        for part, gradient in zip(parts, gradients, strict=True):
            active = _active(part, keys) if activations is None else activations
            for_direction += gradient.flatten() @ active.flatten(0, 2)
            slope = gradient[..., None] * direction
            torch.ops.aten.tanh_backward.grad_input(slope, active, grad_input=slope)
            for_queries.append(slope.sum(2))
            for_keys += slope.sum(1)
        return torch.cat(for_queries, 1), for_keys, for_direction


def _active(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return tanh of every query with every key as [b, t, s, hidden]."""
    return (queries[:, :, None] + keys[:, None]).tanh_()


def _parts(queries: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cut the queries along the target positions so that one part meets all keys within CHUNK."""
    limit = CHUNK.get(queries.device.type, 2**26)
    return queries.split(max(1, limit // keys.numel()), 1)

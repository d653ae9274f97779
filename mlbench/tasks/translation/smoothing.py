"""Cross-entropy against smoothed labels over large vocabularies, in two tensors of the logits' size."""

from typing import Any

import torch

# Logits widened to float32 at a time. Bounds the temporaries, changes no result (2026-11-21)
CHUNK = {"cpu": 2**20, "cuda": 2**26}  # elements: a CPU's share of the cache, 256 MiB on a GPU


def smoothed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, *, smoothing: float, padding: int
) -> torch.Tensor:
    """Return the sum of the tokens' losses as a float32 scalar (float64 for float64 logits).

    logits [..., vocabulary] and labels [...] (int64). Tokens labelled `padding` count nothing. The loss of a
    token with label y is -(1 - smoothing) * log p(y) - smoothing * mean over the vocabulary of log p. This is
    Szegedy et al. 2016, section 7, and `torch.nn.functional.cross_entropy`. That one holds five tensors of
    the logits' size at once and widens half-precision logits whole. This one holds the logits and their
    gradient, both in the logits' type, while it computes in float32.
    """
    total: Any = _Smoothed.apply(logits.flatten(0, -2), labels.flatten(), smoothing, padding)
    return total


class _Smoothed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, smoothing: float, padding: int
    ) -> torch.Tensor:
        normalisers, losses = [], []
        for rows, answers in _chunks(logits, labels):
            wide = _wide(rows)
            normaliser = wide.logsumexp(1)
            right = wide.gather(1, answers[:, None]).squeeze(1)
            loss = normaliser - (1 - smoothing) * right - smoothing * wide.mean(1)
            normalisers.append(normaliser)
            losses.append(loss.masked_fill_(answers == padding, 0.0))
        ctx.save_for_backward(logits, labels, torch.cat(normalisers))
        ctx.smoothing, ctx.padding = smoothing, padding
        return torch.cat(losses).sum()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        logits, labels, normalisers = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        vocabulary = logits.shape[1]
        begin = 0
        for rows, answers in _chunks(logits, labels):
            end = begin + len(rows)
            wide = (_wide(rows) - normalisers[begin:end, None]).exp_()
            wide -= ctx.smoothing / vocabulary
            right = answers[:, None]
            wide.scatter_add_(1, right, wide.new_full((1, 1), ctx.smoothing - 1).expand_as(right))
            wide *= (upstream[0] * (answers != ctx.padding))[:, None]
            gradient[begin:end] = wide
            begin = end
        return gradient, None, None, None


def _chunks(logits: torch.Tensor, labels: torch.Tensor) -> Any:
    rows = max(1, CHUNK.get(logits.device.type, 2**26) // logits.shape[1])
    return zip(logits.split(rows), labels.split(rows), strict=True)


def _wide(rows: torch.Tensor) -> torch.Tensor:
    return rows if rows.dtype == torch.float64 else rows.float()

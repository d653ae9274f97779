"""The layers of a Transformer: attention without biases, two linear maps, and sinusoidal positions."""

import math

import torch
import torch.nn.functional as F
from torch import nn

Pair = tuple[torch.Tensor, torch.Tensor]  # keys and values, each [n, heads, s, d_model / heads]


class SelfAttention(nn.Module):
    """Every position attends to all positions, or to those up to itself."""

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.inputs = nn.Linear(d_model, 3 * d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        nn.init.xavier_uniform_(self.inputs.weight)
        nn.init.xavier_uniform_(self.output.weight)

    def forward(
        self, x: torch.Tensor, *, keep_mask: torch.Tensor | None = None, past: Pair | None = None
    ) -> tuple[torch.Tensor, Pair | None]:
        """Return answers [n, t, d_model] and, with `past`, all keys and values.

        keep_mask, bool [n, 1, 1, t], is true at the positions to attend to. Without it attention is causal.
        past are keys and values of earlier positions, to which the only position of x attends as well.
        """
        queries, keys, values = _heads(self.inputs(x), 3, self.heads)
        if past is not None:
            past = keys, values = torch.cat([past[0], keys], 2), torch.cat([past[1], values], 2)
        answers = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=keep_mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=keep_mask is None and past is None,
        )
        return self.output(_joined(answers)), past


class CrossAttention(nn.Module):
    """Every position of the target attends to the positions of the source."""

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.memory = nn.Linear(d_model, 2 * d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        for layer in (self.query, self.memory, self.output):
            nn.init.xavier_uniform_(layer.weight)

    def keys(self, memory: torch.Tensor) -> Pair:
        """Return keys and values of the source [sentences, s, d_model]."""
        keys, values = _heads(self.memory(memory), 2, self.heads)
        return keys, values

    def forward(self, x: torch.Tensor, pair: Pair, keep_mask: torch.Tensor) -> torch.Tensor:
        """Return answers [n, t, d_model] for x of the same shape. n is a multiple of the sentences.

        The beams of a sentence are one batch of queries, so its keys are not copied for each.
        """
        keys, values = pair
        (queries,) = _heads(self.query(x).view(len(keys), -1, x.shape[2]), 1, self.heads)
        answers = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=keep_mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.output(_joined(answers)).view_as(x)


class FeedForward(nn.Sequential):
    """Two linear maps of every position."""

    def __init__(self, d_model: int, ffn: int, dropout: float) -> None:
        wide, narrow = nn.Linear(d_model, ffn), nn.Linear(ffn, d_model)
        for layer in (wide, narrow):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        super().__init__(wide, nn.ReLU(inplace=True), nn.Dropout(dropout), narrow)


class EncoderLayer(nn.Module):
    def __init__(self, d_model: int, ffn: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = SelfAttention(d_model, heads, dropout)
        self.ffn = FeedForward(d_model, ffn, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, keep_mask: torch.Tensor) -> torch.Tensor:
        """Return [sentences, s, d_model]. keep_mask, bool [sentences, 1, 1, s], is true at words."""
        answers, _ = self.self_attn(self.norms[0](x), keep_mask=keep_mask)
        x = x + self.dropout(answers)
        return x + self.dropout(self.ffn(self.norms[1](x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model: int, ffn: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = SelfAttention(d_model, heads, dropout)
        self.cross_attn = CrossAttention(d_model, heads, dropout)
        self.ffn = FeedForward(d_model, ffn, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | Pair,
        *,
        keep_mask: torch.Tensor,
        past: Pair | None = None,
    ) -> tuple[torch.Tensor, Pair | None]:
        """Return [n, t, d_model] and, with `past`, this layer's keys and values of the target so far.

        memory is the source [sentences, s, d_model] or this layer's keys and values of it. keep_mask marks
        its words. past are keys and values of the target before x.
        """
        pair = self.cross_attn.keys(memory) if isinstance(memory, torch.Tensor) else memory
        answers, seen = self.self_attn(self.norms[0](x), past=past)
        x = x + self.dropout(answers)
        x = x + self.dropout(self.cross_attn(self.norms[1](x), pair, keep_mask))
        return x + self.dropout(self.ffn(self.norms[2](x))), seen


def sinusoids(
    positions: int, d_model: int, *, first: int = 0, device: torch.device | None = None
) -> torch.Tensor:
    """Return sines and cosines [positions, d_model] from position `first` on (Vaswani et al. 2017, 3.5).

    Sines fill the first half and cosines the second, as in the authors' code. The wavelengths go from 2 pi to
    10,000 * 2 pi. Computed on demand, as a buffer would be averaged over the workers.
    """
    half = d_model // 2
    steps = torch.arange(half, device=device, dtype=torch.float32) / max(1, half - 1)
    rates = torch.exp(-math.log(10_000) * steps)
    angles = torch.arange(first, first + positions, device=device, dtype=torch.float32)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


def _heads(x: torch.Tensor, parts: int, heads: int) -> tuple[torch.Tensor, ...]:
    """Cut [n, t, parts * d_model] into `parts` tensors [n, heads, t, d_model / heads]."""
    # Transposed after they are apart: backward then gathers their gradients in one copy, not in two.
    return tuple(part.transpose(1, 2) for part in x.unflatten(2, (parts, heads, -1)).unbind(2))


def _joined(x: torch.Tensor) -> torch.Tensor:
    """Put the heads of [n, heads, t, size] side by side again: [n, t, heads * size]."""
    return x.transpose(1, 2).flatten(2)

"""The layers of a Transformer: attention without biases, two linear maps, and sinusoidal places."""

import math

import torch
import torch.nn.functional as F
from torch import nn

Pair = tuple[torch.Tensor, torch.Tensor]  # keys and values, each [n, heads, s, width / heads]


class SelfAttention(nn.Module):
    """Every place asks all places, or those up to itself."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        nn.init.xavier_uniform_(self.inputs.weight)
        nn.init.xavier_uniform_(self.output.weight)

    def forward(
        self, x: torch.Tensor, *, present: torch.Tensor | None = None, past: Pair | None = None
    ) -> tuple[torch.Tensor, Pair]:
        """Return answers [n, t, width] and all keys and values.

        present, bool [n, 1, 1, t], says which places may be asked; without it a place asks those up to
        itself. past are keys and values of earlier places, which the only place of x asks too.
        """
        queries, keys, values = _heads(self.inputs(x), 3, self.heads)
        if past is not None:
            keys, values = torch.cat([past[0], keys], 2), torch.cat([past[1], values], 2)
        answers = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=present,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=present is None and past is None,
        )
        return self.output(_joined(answers)), (keys, values)


class CrossAttention(nn.Module):
    """Every place of the target asks the places of the source."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width, bias=False)
        self.memory = nn.Linear(width, 2 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        for layer in (self.query, self.memory, self.output):
            nn.init.xavier_uniform_(layer.weight)

    def keys(self, memory: torch.Tensor) -> Pair:
        """Return keys and values of the source [sentences, s, width]."""
        keys, values = _heads(self.memory(memory), 2, self.heads)
        return keys, values

    def forward(self, x: torch.Tensor, pair: Pair, present: torch.Tensor) -> torch.Tensor:
        """Return answers [n, t, width] for x of the same shape; n is a multiple of the sentences.

        The beams of a sentence ask together, so its keys are not copied for each.
        """
        keys, values = pair
        (queries,) = _heads(self.query(x).view(len(keys), -1, x.shape[2]), 1, self.heads)
        answers = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=present,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.output(_joined(answers)).view_as(x)


class Inner(nn.Sequential):
    """Two linear maps of every place for itself."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        wide, narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        for layer in (wide, narrow):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        super().__init__(wide, nn.ReLU(inplace=True), nn.Dropout(dropout), narrow)


class EncoderLayer(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.itself = SelfAttention(width, heads, dropout)
        self.inner = Inner(width, inner, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """Return [sentences, s, width]; present, bool [sentences, 1, 1, s], is true where words are."""
        answers, _ = self.itself(self.norms[0](x), present=present)
        x = x + self.dropout(answers)
        return x + self.dropout(self.inner(self.norms[1](x)))


class DecoderLayer(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.itself = SelfAttention(width, heads, dropout)
        self.across = CrossAttention(width, heads, dropout)
        self.inner = Inner(width, inner, dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: torch.Tensor, pair: Pair, *, present: torch.Tensor, past: Pair | None = None
    ) -> tuple[torch.Tensor, Pair]:
        """Return [n, t, width] and this layer's keys and values of the target so far.

        pair are keys and values of the source and present where it has words; past are keys and values
        of the target before x.
        """
        answers, seen = self.itself(self.norms[0](x), past=past)
        x = x + self.dropout(answers)
        x = x + self.dropout(self.across(self.norms[1](x), pair, present))
        return x + self.dropout(self.inner(self.norms[2](x))), seen


def sinusoids(places: int, width: int, *, first: int = 0, device: torch.device | None = None) -> torch.Tensor:
    """Return sines and cosines [places, width] of the places from `first` on (Vaswani et al. 2017, 3.5).

    Sines fill the first half and cosines the second, as in the authors' code; the wavelengths go from
    2 pi to 10,000 * 2 pi. Computed where needed: a buffer would be averaged over the workers.
    """
    half = width // 2
    steps = torch.arange(half, device=device, dtype=torch.float32) / max(1, half - 1)
    rates = torch.exp(-math.log(10_000) * steps)
    angles = torch.arange(first, first + places, device=device, dtype=torch.float32)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


def _heads(x: torch.Tensor, parts: int, heads: int) -> tuple[torch.Tensor, ...]:
    """Cut [n, t, parts * width] into `parts` tensors [n, heads, t, width / heads]."""
    return x.unflatten(2, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def _joined(x: torch.Tensor) -> torch.Tensor:
    """Put the heads of [n, heads, t, size] side by side again: [n, t, heads * size]."""
    return x.transpose(1, 2).flatten(2)

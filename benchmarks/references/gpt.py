"""GPT-2 in the way of nanoGPT: fused queries, keys and values, SDPA, fused AdamW."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from references import COMMON, Data, Reference, Words, column, main, speed

VARIANTS = (*COMMON, "attention=matmul")


class Layer(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self, width: int, heads: int, attention: str) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [n, t, width] to the same shape."""
        n, t, width = x.shape
        q, k, v = (
            part.view(n, t, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.first(x)).split(width, dim=2)
        )
        if self.attention == "matmul":
            scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
            later = torch.ones(t, t, dtype=torch.bool).triu(1)
            y = scores.masked_fill(later, -math.inf).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).contiguous().view(n, t, width))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Decoder(nn.Module):
    """Embeddings, layers, and the embedding again as classifier."""

    def __init__(self, config: Any, attention: str) -> None:
        super().__init__()
        width = config.d_model
        self.embedding = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(config.context, width)
        self.layers = nn.ModuleList(Layer(width, config.heads, attention) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [n, t, vocabulary]."""
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build(config: Any, size: int, overrides: Words) -> Reference:
    """Return the model with AdamW and a bounded gradient."""
    model = Decoder(config, overrides.get("attention", "sdpa"))
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=config.lr, betas=tuple(config.betas), eps=config.eps, **speed(overrides)
    )

    def loss(net: nn.Module, tokens: Any) -> torch.Tensor:
        logits = net(tokens[:, :-1])
        total = F.cross_entropy(logits.view(-1, logits.shape[-1]), tokens[:, 1:].flatten(), reduction="sum")
        return total / (config.global_batch_size / ranks() * config.context)

    return Reference(model, optimizer, loss, max_grad_norm=config.max_grad_norm)


def ranks() -> int:
    """Return how many ranks share a step."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_initialized() else 1


def load(config: Any, folder: Path, rank: int, size: int) -> Data:
    """Return this rank's share of shuffled sequences, in micro-batches."""
    text = torch.from_numpy(column(folder / "train.arrow", "token").numpy().astype("int64"))
    windows = text.unfold(0, config.context + 1, config.context)
    each = config.global_batch_size // size

    def steps(epoch: int) -> Iterator[list[torch.Tensor]]:
        order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(epoch))
        for begin in range(0, len(order) - config.global_batch_size + 1, config.global_batch_size):
            own = order[begin + rank * each : begin + (rank + 1) * each]
            yield [windows[part] for part in own.split(config.batch_size)]

    return Data(config.vocabulary, steps, lambda tokens: tokens[:, 1:].numel())


if __name__ == "__main__":
    main()

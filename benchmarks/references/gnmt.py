"""GNMT: every LSTM over whole padded sentences, additive attention in one tensor."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from references import COMMON, Reference, Words, main, translation

VARIANTS = ("sentences=packed", *COMMON)
load = translation.load


class Gnmt(nn.Module):
    """A bidirectional and further LSTM layers, additive attention from the decoder's first layer for all."""

    def __init__(self, config: Any, vocabulary: int, *, packed: bool) -> None:
        super().__init__()
        self.packed = packed
        h, upper = config.hidden, config.layers - 1
        self.embedding = nn.Embedding(vocabulary, h)
        self.forwards, self.backwards = nn.LSTM(h, h), nn.LSTM(h, h)
        self.encoder = nn.ModuleList(nn.LSTM(2 * h if number == 0 else h, h) for number in range(upper))
        self.first = nn.LSTM(h, h)
        self.query, self.key = nn.Linear(h, h, bias=False), nn.Linear(h, h)
        self.direction = nn.Parameter(torch.randn(h) / h**0.5)
        self.scale = nn.Parameter(torch.tensor(h**-0.5))
        self.decoder = nn.ModuleList(nn.LSTM(2 * h, h) for _ in range(upper))
        self.classifier = nn.Linear(h, vocabulary)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.embedding(source.t()))
        back = self.reverse(self.read(self.backwards, self.reverse(x, lengths), lengths), lengths)
        x = torch.cat([self.read(self.forwards, x, lengths), back], 2)
        for number, layer in enumerate(self.encoder):
            y = layer(self.dropout(x))[0]
            x = y + x if number else y
        memory = x.transpose(0, 1)
        keys = self.key(memory)
        x = self.first(self.dropout(self.embedding(target.t())))[0]
        direction = self.scale * self.direction / self.direction.norm()
        queries = self.query(x.transpose(0, 1))
        scores = torch.tanh(queries[:, :, None] + keys[:, None]) @ direction
        padded = torch.arange(source.shape[1], device=x.device) >= lengths.to(x.device)[:, None]
        weights = scores.masked_fill(padded[:, None], -math.inf).softmax(2)
        contexts = (weights.to(memory.dtype) @ memory).transpose(0, 1)
        for number, layer in enumerate(self.decoder):
            y = layer(self.dropout(torch.cat([x, contexts], 2)))[0]
            x = y + x if number else y
        return self.classifier(x.transpose(0, 1))

    def read(self, layer: nn.Module, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if not self.packed:
            return layer(x)[0]
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        return pad_packed_sequence(layer(packed)[0])[0]

    def reverse(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Reverse every sentence within its length."""
        position, lengths = torch.arange(len(x), device=x.device)[:, None], lengths.to(x.device)
        origin = torch.where(position < lengths, lengths - 1 - position, position)
        return x.gather(0, origin[:, :, None].expand_as(x))


def build(config: Any, size: int, overrides: Words) -> Reference:
    """Return the model with smoothed labels under Adam."""
    model = Gnmt(config, size, packed=overrides.get("sentences") == "packed")
    return translation.reference(model, config, overrides)


if __name__ == "__main__":
    main()

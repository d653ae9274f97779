"""The AWD-LSTM language model, as in its authors' code but for what that does twice."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from plain import Plain

State = tuple[torch.Tensor, torch.Tensor]


class LanguageModel(nn.Module):
    """Embedding, LSTM layers whose recurrent weights are dropped, and the embedding again as classifier."""

    def __init__(self, config: Any, vocabulary: int) -> None:
        super().__init__()
        self.drops = config.dropouts
        widths = [config.embedding, *[config.hidden] * (config.layers - 1), config.embedding]
        self.embedding = nn.Embedding(vocabulary, config.embedding)
        self.layers = nn.ModuleList(
            nn.LSTM(inputs, width) for inputs, width in zip(widths, widths[1:], strict=False)
        )
        self.decoder = nn.Linear(config.embedding, vocabulary)
        self.decoder.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(
        self, tokens: torch.Tensor, states: list[State] | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, list[State]]:
        """Return logits, the last layer's output before and after dropout, and the states."""
        x = self.embedding(tokens)
        words = locked(torch.ones(len(self.embedding.weight), 1), self.drops.embedding, shared=1)
        raw = x = locked(x * words[tokens], self.drops.input)
        after = []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, nn.LSTM)
            entering, recurrent, *biases = layer.parameters()
            weights = [entering, F.dropout(recurrent, self.drops.recurrent), *biases]
            zeros = x.new_zeros(1, x.shape[1], layer.hidden_size)
            state = states[number] if states else (zeros, zeros)
            raw, *new = torch.lstm(x, state, weights, True, 1, 0.0, True, False, False)
            after.append(tuple(new))
            last = number == len(self.layers) - 1
            x = locked(raw, self.drops.output if last else self.drops.hidden)
        return self.decoder(x), raw, x, after


def locked(x: torch.Tensor, drop: float, *, shared: int = 0) -> torch.Tensor:
    """Drop with one mask for all of the first dimension, or of dimension `shared`."""
    if not drop:
        return x
    shape = [1 if dimension == shared else size for dimension, size in enumerate(x.shape)]
    return x * x.new_empty(shape).bernoulli_(1 - drop).div_(1 - drop)


def language_model(config: Any, *, vocabulary: int) -> Plain:
    """Return the model with activation regularisation and a bounded gradient under SGD."""
    model = LanguageModel(config, vocabulary)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    states: list[State] | None = None

    def step(batches: Sequence[Any]) -> torch.Tensor:
        nonlocal states
        (chunk,) = batches
        logits, raw, dropped, after = model(chunk.inputs, states)
        states = [(hidden.detach(), cell.detach()) for hidden, cell in after]
        loss = F.cross_entropy(logits.flatten(0, 1), chunk.targets.flatten())
        loss = loss + config.ar * dropped.pow(2).mean()
        loss = loss + config.tar * (raw[1:] - raw[:-1]).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Plain(model, optimizer, step)

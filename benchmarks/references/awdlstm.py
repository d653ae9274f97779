"""The AWD-LSTM language model, as in its authors' code but for what that does twice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from references import COMMON, Data, Reference, Words, column, main, speed

VARIANTS = COMMON
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
        mask = locked(x.new_ones(len(self.embedding.weight), 1), self.drops.embedding, shared=1)
        raw = x = locked(x * mask[tokens], self.drops.input)
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


class Chunk(NamedTuple):
    """Words and the words that follow them, [length, columns]."""

    inputs: torch.Tensor
    targets: torch.Tensor


def build(config: Any, size: int, overrides: Words) -> Reference:
    """Return the model with activation regularisation and a bounded gradient under SGD."""
    model = LanguageModel(config, size)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay, **speed(overrides)
    )
    states: list[State] | None = None

    def loss(net: nn.Module, chunk: Any) -> torch.Tensor:
        nonlocal states
        logits, raw, dropped, after = net(chunk.inputs, states)
        states = [(hidden.detach(), cell.detach()) for hidden, cell in after]
        entropy = F.cross_entropy(logits.flatten(0, 1), chunk.targets.flatten())
        change = raw[1:] - raw[:-1]
        return entropy + config.ar * dropped.square().mean() + config.tar * change.square().mean()

    return Reference(model, optimizer, loss, max_grad_norm=config.max_grad_norm)


def load(config: Any, folder: Path, rank: int, size: int) -> Data:
    """Return chunks of this rank's columns of the text, of random lengths."""
    tokens = column(folder / "train.arrow", "token").long()
    count = config.batch_size * size
    rows = len(tokens) // count
    own = slice(rank * config.batch_size, (rank + 1) * config.batch_size)
    text = tokens[: rows * count].view(count, rows)[own].t().contiguous()

    def steps(epoch: int) -> Iterator[list[Chunk]]:
        generator = torch.Generator().manual_seed(epoch)
        begin = 0
        while begin < rows - 6:
            half, noise = torch.rand((), generator=generator), torch.randn((), generator=generator)
            length = max(5, int((config.bptt / 2 if half < 0.05 else config.bptt) + 5 * noise))
            end = min(rows - 1, begin + length)
            yield [Chunk(text[begin:end], text[begin + 1 : end + 1])]
            begin = end

    return Data(int(tokens.max()) + 1, steps, lambda chunk: chunk.inputs.numel())


if __name__ == "__main__":
    main()

"""AWD-LSTM (Merity et al. 2017): LSTM layers with five kinds of dropout, input and output words tied.

Every mask is drawn from a generator that the caller gives, so ranks drop different units and the same seed
drops the same ones again. Text runs down the first dimension: tokens are [length, columns].
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlbench.tasks.awdlstm import Dropouts

States = list[tuple[Tensor, Tensor]]  # hidden and cell of each layer, [1, columns, width]
EMBEDDING_RANGE = 0.1  # words start uniform in +-0.1 (Merity et al. 2017, section 5)


class LanguageModelOutput(NamedTuple):
    """The model's output for every token, and what its regularisation and the next chunk need.

    - logits: [length, columns, vocabulary], of the word that follows.
    - raw, dropped: [length, columns, embedding], the last layer's output before and after dropout.
    - states: each layer's after the last token.
    """

    logits: Tensor
    raw: Tensor
    dropped: Tensor
    states: States


class WeightDropLSTM(nn.Module):
    """One LSTM layer that drops recurrent weights, the same ones for a whole chunk (DropConnect).

    Its parameters have the names and shapes of torch.nn.LSTM's. nn.LSTM itself would keep using the
    weights that it was built with, so the layer calls the kernel below it, `torch.lstm`, directly.
    """

    def __init__(self, inputs: int, width: int, *, drop: float) -> None:
        super().__init__()
        self.drop = drop
        self.weight_ih_l0 = nn.Parameter(torch.empty(4 * width, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(4 * width, width))
        self.bias_ih_l0 = nn.Parameter(torch.empty(4 * width))
        self.bias_hh_l0 = nn.Parameter(torch.empty(4 * width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)  # as torch.nn.LSTM does

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None, dropout_rng: torch.Generator | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the outputs [length, columns, width] and the state after the last of them."""
        recurrent = self.weight_hh_l0
        if self.training and self.drop:
            recurrent = recurrent * keep(recurrent, recurrent.shape, self.drop, dropout_rng)
        weights = [self.weight_ih_l0, recurrent, self.bias_ih_l0, self.bias_hh_l0]
        if x.is_cuda:
            # cuDNN needs its weights one after the other. Otherwise it copies them at every call, and warns.
            whole = torch.cat([weight.flatten() for weight in weights])
            parts = whole.split([weight.numel() for weight in weights])
            weights = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        if state is None:
            zeros = x.new_zeros(1, x.shape[1], recurrent.shape[1])
            state = (zeros, zeros)
        # weights, biases: True, one layer, no dropout between layers, one direction, time first
        output, hidden, cell = torch.lstm(x, state, weights, True, 1, 0.0, self.training, False, False)
        return output, (hidden, cell)


class AwdLstm(nn.Module):
    """The language model: words in, logits of the next word out."""

    def __init__(
        self, vocabulary: int, *, embedding: int, hidden: int, layers: int, dropouts: Dropouts
    ) -> None:
        super().__init__()
        widths = [embedding] + [hidden] * (layers - 1) + [embedding]
        self.dropouts = dropouts
        self.words = nn.Parameter(torch.empty(vocabulary, embedding))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.uniform_(self.words, -EMBEDDING_RANGE, EMBEDDING_RANGE)
        self.layers = nn.ModuleList(
            WeightDropLSTM(inputs, width, drop=dropouts.recurrent)
            for inputs, width in zip(widths, widths[1:], strict=False)
        )

    def forward(
        self, tokens: Tensor, states: States | None = None, dropout_rng: torch.Generator | None = None
    ) -> LanguageModelOutput:
        """Read `tokens` [length, columns] on from `states`. None: a text begins here.

        `dropout_rng` draws the masks of dropout, and is not needed without dropout.
        """
        x = F.embedding(tokens, self.words)
        if self.training and self.dropouts.embedding:
            # A word is kept or dropped at all its places. Only the rows that occur are multiplied.
            rows = keep(x, (len(self.words), 1), self.dropouts.embedding, dropout_rng)
            x = x * F.embedding(tokens, rows)
        x = raw = self.locked(x, self.dropouts.input, dropout_rng)
        after = []
        for index, layer in enumerate(self.layers):
            raw, state = layer(x, states[index] if states else None, dropout_rng)
            after.append(state)
            last = index == len(self.layers) - 1
            x = self.locked(raw, self.dropouts.output if last else self.dropouts.hidden, dropout_rng)
        return LanguageModelOutput(F.linear(x, self.words, self.bias), raw, x, after)

    def locked(self, x: Tensor, drop: float, dropout_rng: torch.Generator | None) -> Tensor:
        """Drop the same units of a column at every token (Gal and Ghahramani 2016)."""
        if not self.training or not drop:
            return x
        return x * keep(x, (1, *x.shape[1:]), drop, dropout_rng)


def keep(like: Tensor, shape: tuple[int, ...], drop: float, dropout_rng: torch.Generator | None) -> Tensor:
    """Return a mask of 0 with probability `drop` and else 1 / (1 - drop), on the device of `like`."""
    assert dropout_rng is not None, "dropout needs a generator"
    return like.new_empty(shape).bernoulli_(1 - drop, generator=dropout_rng).div_(1 - drop)


def loss(output: LanguageModelOutput, targets: Tensor, *, ar: float, tar: float) -> Tensor:
    """Return mean cross-entropy + activation and temporal activation regularisation (AR, TAR).

    AR is the mean square of the dropped output, TAR that of the raw output's change from token to token
    (Merity et al. 2017, section 4.6). All are means, so those of equal batches average to the whole's.
    """
    entropy = F.cross_entropy(output.logits.flatten(0, 1), targets.flatten())
    change = output.raw[1:] - output.raw[:-1]
    return entropy + ar * output.dropped.square().mean() + tar * change.square().mean()


def detached(states: States) -> States:
    """Return states that backward does not go through: truncated back-propagation ends here."""
    return [(hidden.detach(), cell.detach()) for hidden, cell in states]

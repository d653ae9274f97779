"""GNMT (Wu et al. 2016) as MLPerf Training v0.6 has it: LSTM encoder and decoder with additive attention.

The decoder's attention looks at its first layer's output and feeds all layers above. So in training every
layer runs over the whole target at once, and only LSTMs go step by step. The decoder starts from zeros.
Tensors are time-major [time, sentences, hidden] around the LSTMs.
"""

import math
from collections.abc import Callable

import torch
from torch import nn

from mlbench.tasks.gnmt.attention import AdditiveAttention

# Weights start uniform in +-SPREAD / sqrt(hidden): +-0.1 at 1,024 (README.md), sums alike at other widths
SPREAD = 3.2
Attend = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # hidden to contexts and weights


class Gnmt(nn.Module):
    """Source and target share the embedding. The classifier has separate weights."""

    def __init__(self, vocabulary: int, *, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.encoder = Encoder(hidden, layers=layers, dropout=dropout)
        self.decoder = Decoder(hidden, layers=layers, dropout=dropout)
        self.classifier = nn.Linear(hidden, vocabulary)
        for weight in (self.embedding.weight, self.classifier.weight, self.classifier.bias):
            _init_uniform(weight, hidden)

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return logits [sentences, t, vocabulary] of the word after each of target [sentences, t].

        source is [sentences, s], lengths [sentences]. All are int64, padded at the end with any word.
        """
        memory, padded = self._read(source, lengths)

        def attend(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            keys = self.decoder.attention.keys(memory)  # inside its forward, as a unit of fsdp needs
            contexts, weights = self.decoder.attention(hidden.transpose(0, 1), keys, memory, padded)
            return contexts.transpose(0, 1), weights

        hidden, _, _ = self.decoder(self.embedding(target.t()), attend, None)
        return self.classifier(hidden.transpose(0, 1))

    def encode(
        self, source: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what is attended to: memory and keys [sentences, s, hidden], padded [sentences, s]."""
        memory, padded = self._read(source, lengths)
        return memory, self.decoder.attention.keys(memory), padded

    def _read(self, source: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        memory = self.encoder(self.embedding(source.t()), lengths).transpose(0, 1).contiguous()
        return memory, torch.arange(source.shape[1], device=source.device) >= lengths[:, None]

    def init_state(self, memory: tuple[torch.Tensor, ...], beams: int) -> tuple[torch.Tensor, ...]:
        """Return the state before the first word: every layer's output and cell, all zeros."""
        sentences, _, hidden = memory[0].shape
        layers = 1 + len(self.decoder.layers)
        return (memory[0].new_zeros(sentences, beams, layers, 2, hidden),)

    def step(
        self,
        words: torch.Tensor,
        state: tuple[torch.Tensor, ...],
        memory: tuple[torch.Tensor, ...],
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor | None]:
        """Return logits [sentences, beams, vocabulary] after words [sentences, beams], state and weights."""
        sentences, beams = words.shape
        source_memory, keys, padded = memory

        def attend(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            queries = hidden.view(sentences, beams, -1)
            contexts, weights = self.decoder.attention(queries, keys, source_memory, padded)
            return contexts.view(1, sentences * beams, -1), weights

        # [layers, 2, sentences * beams, hidden]. cuDNN takes no views with gaps
        states = state[0].flatten(0, 1).permute(1, 2, 0, 3).contiguous()
        embedded = self.embedding(words.reshape(1, -1))
        hidden, states, weights = self.decoder(embedded, attend, states)
        states = states.permute(2, 0, 1, 3).unflatten(0, (sentences, beams))
        return self.classifier(hidden.view(sentences, beams, -1)), (states,), weights


class Encoder(nn.Module):
    """One layer in both directions, then forward layers. The third and on add their input (residual)."""

    def __init__(self, hidden: int, *, layers: int, dropout: float) -> None:
        super().__init__()
        self.forward_lstm = _lstm(hidden, hidden)
        self.backward_lstm = _lstm(hidden, hidden)
        self.layers = nn.ModuleList(
            _lstm(2 * hidden if layer == 0 else hidden, hidden) for layer in range(layers - 1)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return [s, sentences, hidden]. What lies beyond a sentence's length is meaningless.

        The padding is at the end, so no state passes on to a word. For the backward direction every sentence
        is reversed within its length. That computes what packed sequences do and needs no lengths on the host
        of a GPU.
        """
        x = self.dropout(x)
        reverse = _reverse_padded(self.backward_lstm(_reverse_padded(x, lengths))[0], lengths)
        x = torch.cat([self.forward_lstm(x)[0], reverse], 2)
        for number, layer in enumerate(self.layers):
            output = layer(self.dropout(x))[0]
            x = output + x if number else output
        return x


class Decoder(nn.Module):
    """The first layer's output queries the attention. The layers above get its context with their input."""

    def __init__(self, hidden: int, *, layers: int, dropout: float) -> None:
        super().__init__()
        self.first = _lstm(hidden, hidden)
        self.attention = AdditiveAttention(hidden, spread=SPREAD / math.sqrt(hidden))
        self.layers = nn.ModuleList(_lstm(2 * hidden, hidden) for _ in range(layers - 1))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: torch.Tensor, attend: Attend, states: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return outputs [t, n, hidden], states after the last word, and the attention's weights.

        x is [t, n, hidden]. attend gives contexts [t, n, hidden] and weights for the first layer's output.
        states is [layers, 2, n, hidden] (outputs and cells), None for zeros.
        """
        before = [None] * (1 + len(self.layers)) if states is None else [(s[:1], s[1:]) for s in states]
        x, state = self.first(self.dropout(x), before[0])
        after = [state]
        contexts, weights = attend(x)
        for number, layer in enumerate(self.layers):
            output, state = layer(self.dropout(torch.cat([x, contexts], 2)), before[1 + number])
            after.append(state)
            x = output + x if number else output
        return x, torch.stack([torch.cat(pair) for pair in after]), weights


def _lstm(inputs: int, hidden: int) -> nn.LSTM:
    layer = nn.LSTM(inputs, hidden)
    for name, weight in layer.named_parameters():
        if name.startswith("bias_hh"):
            nn.init.zeros_(weight)  # the two biases of a gate act as one
        else:
            _init_uniform(weight, hidden)
    return layer


def _init_uniform(weight: torch.Tensor, hidden: int) -> None:
    nn.init.uniform_(weight, -SPREAD / math.sqrt(hidden), SPREAD / math.sqrt(hidden))


def _reverse_padded(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Reverse each sentence of x [s, sentences, hidden] within its length. Padding stays in place."""
    position = torch.arange(len(x), device=x.device)[:, None]
    origin = torch.where(position < lengths, lengths - 1 - position, position)
    return x.gather(0, origin[..., None].expand_as(x))

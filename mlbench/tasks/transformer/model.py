"""The Transformer (Vaswani et al. 2017) with normalisation before each part, as MLPerf Training v0.6 has it.

Source, target and output share one embedding, and both stacks end in a separate normalisation.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from mlbench.tasks.transformer.layers import DecoderLayer, EncoderLayer, sinusoids


class Transformer(nn.Module):
    """Encoder and decoder of `layers` layers each."""

    def __init__(
        self, vocabulary: int, *, d_model: int, ffn: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        # No nn.Embedding: the output reads it, too, and a unit of fsdp has its weights in its forward only.
        # Made as one, which draws random numbers: so a seed gives the weights that it gave in 0.2.
        self.embedding = nn.ParameterDict({"weight": nn.Embedding(vocabulary, d_model).weight})
        nn.init.normal_(self.embedding["weight"], std=d_model**-0.5)
        sizes = (d_model, ffn, heads, dropout)
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(layers))
        self.encoder_norm = nn.LayerNorm(d_model)
        self.decoder_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return logits [sentences, t, vocabulary] of the word after each of target [sentences, t].

        source is [sentences, s], lengths [sentences]. All are int64, padded at the end with any word. The
        target needs no lengths: its padding comes after every word that could look at it.
        """
        keep_mask, memory = self._read(source, lengths)
        x = self._embed(target)
        for layer in self.decoder:
            x, _ = layer(x, memory, keep_mask=keep_mask)
        return self._classify(x)

    def encode(self, source: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what the decoder attends to.

        The first tensor, bool [sentences, 1, 1, s], is true at words. Then come keys and values [sentences,
        heads, s, d_model / heads] of every decoder layer, computed once a sentence.
        """
        keep_mask, x = self._read(source, lengths)
        memory = [keep_mask]
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            memory += layer.cross_attn.keys(x)
        return tuple(memory)

    def _read(self, source: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        position = torch.arange(source.shape[1], device=source.device)
        keep_mask = (position < lengths[:, None])[:, None, None]
        x = self._embed(source)
        for layer in self.encoder:
            x = layer(x, keep_mask)
        return keep_mask, self.encoder_norm(x)

    def init_state(self, memory: tuple[torch.Tensor, ...], beams: int) -> tuple[torch.Tensor, ...]:
        """Return the state before the first word: every decoder layer's keys and values of no words."""
        sentences, heads, _, size = memory[1].shape
        empty = memory[1].new_zeros(sentences, beams, heads, 0, size)
        return (empty,) * (2 * len(self.decoder))

    def step(
        self,
        words: torch.Tensor,
        state: tuple[torch.Tensor, ...],
        memory: tuple[torch.Tensor, ...],
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...], None]:
        """Return logits [sentences, beams, vocabulary] after words [sentences, beams], and the state."""
        keep_mask, *memory_kv = memory
        x = self._embed(words.reshape(-1, 1), first=state[0].shape[3])
        seen = [part.flatten(0, 1) for part in state]
        state = ()
        for layer, pair, past in zip(self.decoder, _pairs(memory_kv), _pairs(seen), strict=True):
            x, past = layer(x, pair, keep_mask=keep_mask, past=past)
            state += past
        logits = self._classify(x).unflatten(0, words.shape).squeeze(2)
        return logits, tuple(part.unflatten(0, words.shape) for part in state), None

    def _embed(self, words: torch.Tensor, first: int = 0) -> torch.Tensor:
        weight = self.embedding["weight"]
        positions = sinusoids(words.shape[1], weight.shape[1], first=first, device=words.device)
        return self.dropout(F.embedding(words, weight) * math.sqrt(weight.shape[1]) + positions)

    def _classify(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.decoder_norm(x), self.embedding["weight"])


def _pairs(parts: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(parts[::2], parts[1::2], strict=True))

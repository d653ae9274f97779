"""The two translation models out of torch's LSTM and Transformer layers."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from plain import Plain

PAD = 0


class Gnmt(nn.Module):
    """A bidirectional and further LSTM layers, additive attention from the decoder's first layer for all."""

    def __init__(self, config: Any, vocabulary: int) -> None:
        super().__init__()
        h, upper = config.hidden, config.layers - 1
        self.embedding = nn.Embedding(vocabulary, h)
        self.both_ways = nn.LSTM(h, h, bidirectional=True, batch_first=True)
        self.encoder = nn.ModuleList(
            nn.LSTM(2 * h if number == 0 else h, h, batch_first=True) for number in range(upper)
        )
        self.first = nn.LSTM(h, h, batch_first=True)
        self.query, self.key = nn.Linear(h, h, bias=False), nn.Linear(h, h)
        self.direction = nn.Parameter(torch.randn(h) / h**0.5)
        self.scale = nn.Parameter(torch.tensor(h**-0.5))
        self.decoder = nn.ModuleList(nn.LSTM(2 * h, h, batch_first=True) for _ in range(upper))
        self.classifier = nn.Linear(h, vocabulary)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.embedding(source))
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        x = pad_packed_sequence(self.both_ways(packed)[0], batch_first=True)[0]
        for number, layer in enumerate(self.encoder):
            y = layer(self.dropout(x))[0]
            x = y + x if number else y
        memory, keys = x, self.key(x)
        x = self.first(self.dropout(self.embedding(target)))[0]
        direction = self.scale * self.direction / self.direction.norm()
        scores = torch.tanh(self.query(x)[:, :, None] + keys[:, None]) @ direction
        padded = torch.arange(source.shape[1]) >= lengths[:, None]
        contexts = scores.masked_fill(padded[:, None], -math.inf).softmax(2) @ memory
        for number, layer in enumerate(self.decoder):
            y = layer(self.dropout(torch.cat([x, contexts], 2)))[0]
            x = y + x if number else y
        return self.classifier(x)


class Transformer(nn.Module):
    """torch's layers with the norm first, without biases in the attention; one embedding for everything."""

    def __init__(self, config: Any, vocabulary: int) -> None:
        super().__init__()
        self.width = config.d_model
        sizes = (config.d_model, config.heads, config.ffn, config.dropout)
        self.embedding = nn.Embedding(vocabulary, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*sizes, batch_first=True, norm_first=True),
            config.layers,
            norm=nn.LayerNorm(config.d_model),
            enable_nested_tensor=False,
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*sizes, batch_first=True, norm_first=True),
            config.layers,
            norm=nn.LayerNorm(config.d_model),
        )
        for part in self.modules():
            if isinstance(part, nn.MultiheadAttention):
                part.register_parameter("in_proj_bias", None)
                part.out_proj.register_parameter("bias", None)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        padded = torch.arange(source.shape[1]) >= lengths[:, None]
        memory = self.encoder(self.embed(source), src_key_padding_mask=padded)
        x = self.decoder(
            self.embed(target),
            memory,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
            tgt_is_causal=True,
            memory_key_padding_mask=padded,
        )
        return F.linear(x, self.embedding.weight)

    def embed(self, words: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        rates = torch.exp(torch.arange(half) * (-math.log(10_000) / (half - 1)))
        angles = torch.arange(words.shape[1])[:, None] * rates
        places = torch.cat([angles.sin(), angles.cos()], 1)
        return self.dropout(self.embedding(words) * math.sqrt(self.width) + places)


def translator(config: Any, *, vocabulary: int) -> Plain:
    """Return the model with smoothed labels over all micro-batches under Adam."""
    model = (Gnmt if config.name == "gnmt" else Transformer)(config, vocabulary)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )

    def step(batches: Sequence[Any]) -> torch.Tensor:
        total = torch.zeros(())
        for batch in batches:
            whole = batch.step_sentences if config.batch_by == "sentences" else batch.step_target_tokens
            logits = model(batch.source, batch.source_lengths, batch.target_in)
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                batch.target_out.flatten(),
                ignore_index=PAD,
                reduction="sum",
                label_smoothing=config.label_smoothing,
            )
            loss = loss / whole
            loss.backward()
            total += loss.detach()
        if config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return Plain(model, optimizer, step)

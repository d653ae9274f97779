"""The Transformer out of torch's layers, whose attention is scaled_dot_product_attention."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from references import COMMON, Reference, Words, main, translation

VARIANTS = ("attention=math", *COMMON)
load = translation.load


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
        padded = torch.arange(source.shape[1], device=source.device) >= lengths.to(source.device)[:, None]
        memory = self.encoder(self.embed(source), src_key_padding_mask=padded)
        x = self.decoder(
            self.embed(target),
            memory,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1], target.device),
            tgt_is_causal=True,
            memory_key_padding_mask=padded,
        )
        return F.linear(x, self.embedding.weight)

    def embed(self, words: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=words.device) * (-math.log(10_000) / (half - 1)))
        angles = torch.arange(words.shape[1], device=words.device)[:, None] * rates
        places = torch.cat([angles.sin(), angles.cos()], 1)
        return self.dropout(self.embedding(words) * math.sqrt(self.width) + places)


def build(config: Any, size: int, overrides: Words) -> Reference:
    """Return the model with smoothed labels under Adam."""
    # The variant: attention out of products and a soft-max instead of the fused kernel.
    kernel = torch.nn.attention.SDPBackend.MATH if "attention" in overrides else None
    return translation.reference(Transformer(config, size), config, overrides, kernel=kernel)


if __name__ == "__main__":
    main()

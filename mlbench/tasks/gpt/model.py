"""GPT-2 (Radford et al. 2019): a pre-norm decoder with learned positions, input and output tokens tied."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

INIT_STD = 0.02  # of all matrices (Radford et al. 2018, section 4.1)


class TransformerBlock(nn.Module):
    """Causal self-attention and an MLP of four times the width, each normalised before and added."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention_inputs = nn.Linear(d_model, 3 * d_model)  # queries, keys, values
        self.attention_output = nn.Linear(d_model, d_model)
        self.mlp_norm = nn.LayerNorm(d_model)
        self.mlp_input = nn.Linear(d_model, 4 * d_model)
        self.mlp_output = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, t, d_model] to the same shape."""
        n, length, d_model = x.shape
        inputs = self.attention_inputs(self.attention_norm(x)).view(n, length, 3, self.heads, -1)
        # Transposed after they are apart: backward then gathers their gradients in one copy, not in two.
        queries, keys, values = (part.transpose(1, 2) for part in inputs.unbind(2))
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.attention_output(mixed.transpose(1, 2).reshape(n, length, d_model))
        return x + self.mlp_output(F.gelu(self.mlp_input(self.mlp_norm(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Tokens in, logits of the next token out.

    - activation_checkpointing: backward computes each block again instead of keeping what is inside it.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        context: int,
        layers: int,
        d_model: int,
        heads: int,
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.activation_checkpointing = activation_checkpointing
        self.tokens = nn.Parameter(torch.empty(vocabulary, d_model))
        self.positions = nn.Parameter(torch.empty(context, d_model))
        self.blocks = nn.ModuleList(TransformerBlock(d_model, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d_model)
        # What every block adds to is as large after all of them (Radford et al. 2019, section 2.3).
        residual_std = INIT_STD / (2 * layers) ** 0.5
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=residual_std if name.endswith("output.weight") else INIT_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [n, t, vocabulary] for `tokens` [n, t], t at most `context`."""
        x = F.embedding(tokens, self.tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # nothing is random
            else:
                x = block(x)
        return F.linear(self.norm(x), self.tokens)

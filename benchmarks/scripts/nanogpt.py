"""A GPT with two micro-batches a step under DDP, in the manner of nanoGPT; random tokens."""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 512, 64, 96, 4, 3
BATCH, MICRO_BATCHES, STEPS = 16, 2, 150


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        heads = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).split(WIDTH, 2)
        )
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, targets):
        x = self.blocks(self.tokens(tokens) + self.places(torch.arange(CONTEXT)))
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


def batch():
    begins = torch.randint(len(text) - CONTEXT - 1, (BATCH,)).tolist()
    windows = torch.stack([text[begin : begin + CONTEXT + 1] for begin in begins])
    return windows[:, :-1], windows[:, 1:]


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
text = torch.randint(VOCABULARY, (100_000,))
model = DistributedDataParallel(Gpt())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), fused=True)
tokens, targets = batch()
begin = time.perf_counter()
for _ in range(STEPS):
    for number in range(1, MICRO_BATCHES + 1):
        model.require_backward_grad_sync = number == MICRO_BATCHES
        loss = model(tokens, targets) / MICRO_BATCHES
        tokens, targets = batch()
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
seconds = time.perf_counter() - begin
if dist.get_rank() == 0:
    print(f"rate {STEPS * MICRO_BATCHES * BATCH * dist.get_world_size() / seconds}", flush=True)
dist.destroy_process_group()

"""Trains a small decoder in many ways, and prints each loss to the last bit. Arguments: steps, ways."""

import os
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LAYERS, HEADS, WIDTH, LENGTH, WORDS, ROWS = 2, 4, 64, 32, 256, 8
torch.set_num_threads(1)  # with two, compiled code differs by the last bit from run to run
steps, ways = int(sys.argv[1]), set(sys.argv[2:])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).split(WIDTH, 2)
        heads = [part.view(*part.shape[:2], HEADS, -1).transpose(1, 2) for part in parts]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if "checkpoint" in ways else block(h)
        return self.head(h)


torch.manual_seed(0)
model = network = Decoder()
if "ddp" in ways:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(network)
    torch.manual_seed(int(os.environ["RANK"]))
if "compiled" in ways:
    model = torch.compile(model, dynamic=False)
adam = [torch.optim.AdamW(network.parameters(), lr=1e-3)]
if "turns" in ways:
    second = nn.Linear(WIDTH, WIDTH)
    adam.append(torch.optim.AdamW(second.parameters()))
profiler = torch.profiler.profile(record_shapes=True) if "profiler" in ways else None
for step in range(steps):
    if profiler and step == 8:
        profiler.start()
    for _ in range(3 if "accumulated" in ways else 1):
        length = LENGTH // 2 if "lengths" in ways and step == 10 else LENGTH
        x = torch.randint(0, WORDS, (ROWS, length))
        with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in ways):
            loss = functional.cross_entropy(model(x).flatten(0, 1).float(), x.flatten())
        loss.backward()
    adam[0].step()
    adam[0].zero_grad()
    if "turns" in ways:
        second(torch.randn(ROWS, WIDTH)).pow(2).mean().backward()
        adam[1].step()
        adam[1].zero_grad()
    print("loss", float(loss).hex(), flush=True)
    if profiler and step == 13:
        profiler.stop()
        print("profiled", sum(each.count for each in profiler.key_averages() if each.key == "aten::mm"))
if "compiled" in ways:
    from torch._dynamo.utils import counters

    print("compiled", dict(counters["stats"]))
if "ddp" in ways:
    torch.distributed.destroy_process_group()

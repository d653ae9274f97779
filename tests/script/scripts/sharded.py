"""Training on several ranks without DDP. Arguments: fsdp2, zero or own; steps; late rank; delay in s."""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

kind, steps, late, delay = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, rows):
        return torch.relu(self.linear(rows))


class Late(nn.Module):
    def forward(self, rows):
        if dist.get_rank() == late:
            time.sleep(delay)
        return rows


torch.set_num_threads(1)
dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(Block(), Late(), Block(), Block(), nn.Linear(256, 1))
if kind == "fsdp2":
    for part in model:
        if list(part.parameters()):
            fully_shard(part)
    fully_shard(model)
weights = list(model.parameters())
sgd = torch.optim.SGD
optimizer = ZeroRedundancyOptimizer(weights, sgd, lr=0.01) if kind == "zero" else sgd(weights, lr=0.01)
torch.manual_seed(dist.get_rank())
for _ in range(steps):
    rows = torch.randn(256, 256)
    optimizer.zero_grad()
    loss = (model(rows) - rows.mean(1, keepdim=True)).pow(2).mean()
    loss.backward()
    if kind != "fsdp2":
        works: list[Any] = [dist.all_reduce(weight.grad, async_op=kind == "own") for weight in weights]
        for work in works if kind == "own" else ():
            work.wait()
        for weight in weights:
            weight.grad = weight.grad / world if weight.grad is not None else None
    optimizer.step()
whole: list[Any] = [weight.detach() for weight in weights]
total = torch.stack([(each.full_tensor() if kind == "fsdp2" else each).sum() for each in whole]).sum()
if dist.get_rank() == 0:
    print(f"loss {loss.item()!r} weights {total.item()!r}")
dist.destroy_process_group()

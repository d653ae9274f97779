"""Eight linear layers whose weights fully_shard divides; random rows."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

STEPS, BATCH = 400, 64

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4))
)
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
rows = torch.randn(BATCH, 256)
begin = time.perf_counter()
for _ in range(STEPS):
    model(rows).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
seconds = time.perf_counter() - begin
if dist.get_rank() == 0:
    print(f"rate {STEPS * BATCH * dist.get_world_size() / seconds}", flush=True)
dist.destroy_process_group()

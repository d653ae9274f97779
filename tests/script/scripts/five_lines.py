"""A script with a goal of its own; it runs alone, under torchrun, and under a command of mlbench."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import mlbench

if "RANK" in os.environ:
    dist.init_process_group("gloo")
torch.manual_seed(0)
rows = torch.randn(64, 8)
model = torch.nn.Linear(8, 1)
model = DDP(model) if dist.is_initialized() else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with mlbench.measure(metric="loss", goal=0.01, direction="min") as run:
    for _ in range(1000):
        for batch in run.steps(rows.split(16)):
            optimizer.zero_grad()
            loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            optimizer.step()
        if run.validation(loss=loss.item()):
            break

"""Two blocks to measure; arguments: how the second ends. It runs alone and under torchrun."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import mlbench
from mlbench.launch import in_script

if "RANK" in os.environ:
    dist.init_process_group("gloo")
models = [torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)]
models = [DDP(model) if dist.is_initialized() else model for model in models]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=16)


def train(run: in_script.Measurement, *parts: int) -> None:
    """Train these models for two epochs."""
    for epoch in range(2):
        for (rows,) in loader:
            for part in parts:
                optimizers[part].zero_grad()
                models[part](rows).pow(2).mean().backward()
                optimizers[part].step()
        run.validation(loss=len(parts) + epoch / 10)


with mlbench.measure("loss") as run:
    train(run, 0)
with mlbench.measure("loss") as run:
    train(run, 0, 1)
    match sys.argv[1]:
        case "exit":
            sys.exit(0)
        case "fail":
            sys.exit("no rows")
        case "interrupt":
            signal.raise_signal(signal.SIGINT)

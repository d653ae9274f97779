"""Two blocks to measure; arguments: how the second ends. It runs alone and under torchrun."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import mlbench
from mlbench.launch import in_script

if "RANK" in os.environ:
    dist.init_process_group("gloo")
in_script.WRITE_S = 0.1
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


def written() -> bool:
    """Return whether the log of the second run has all validations."""
    logs = [path.read_text().count('"key": "validation"') for path in Path("runs").glob("*/events.jsonl")]
    return logs == [2, 2]


with mlbench.measure("loss") as run:
    train(run, 0)
with mlbench.measure("loss") as run:
    train(run, 0, 1)
    match sys.argv[1]:
        case "exit":
            sys.exit(0)
        case "fail":
            sys.exit("no rows")
        case "kill":
            limit = time.monotonic() + 600
            while not written() and time.monotonic() < limit:
                time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)

"""What crosses the loopback interface while sync strategies train: started in a network namespace of its own.

Prints a JSON list of [words, bytes that the ranks say they sent, bytes that the interface sent] a strategy.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import RankPool
from torch import nn

from mlbench.config.compose import compose
from mlbench.training.sync import strategy
from mlbench.training.worker import Worker

WORKERS, STEPS = 4, 6
SHAPE = (1200, 400)  # of a layer's weights: 1.9 MB


def interface_bytes() -> int:
    """Return what the loopback interface of this namespace has sent."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (line,) = (line for line in lines if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def traffic(worker: Worker, commands: list[list[str]]) -> list[tuple[int, int]]:
    """Return this rank's count and the interface's, of every strategy; set-up and first step left out."""
    results = []
    for overrides in commands:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(SHAPE[1], SHAPE[0]), nn.ReLU(), nn.Linear(SHAPE[0], 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        sync = strategy.synchronise(
            model, optimizer, replace(worker, sync=compose([*overrides, "division=open"]).sync)
        )
        inputs = torch.randn(8, SHAPE[1], generator=torch.Generator().manual_seed(worker.rank))
        own = before = 0
        for step in range(1 + STEPS):
            if step == 1:
                dist.barrier(group=worker.control)
                before, own = interface_bytes(), sync.bytes_sent(step)
                dist.barrier(group=worker.control)
            sync.module(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            sync.after_step(step)
        dist.barrier(group=worker.control)
        results.append((sync.bytes_sent(1 + STEPS) - own, interface_bytes() - before))
        dist.barrier(group=worker.control)
    return results


def main(commands: list[list[str]]) -> list[Any]:
    with RankPool(WORKERS) as pool:
        ranks = pool.run(traffic, commands)
    counted = [sum(rank[n][0] for rank in ranks) for n in range(len(commands))]
    return [[overrides, counted[n], ranks[0][n][1]] for n, overrides in enumerate(commands)]


if __name__ == "__main__":
    import loopback  # not __main__, so that the ranks can import what they are to run

    print(json.dumps(loopback.main(json.loads(sys.argv[1]))))

"""ZeRO stage 1: every weight has one worker that keeps its optimizer state and makes its step."""

from typing import Any

import torch
from torch import nn

from mlbench.training.sync import wire
from mlbench.training.sync.ddp.torch import Ddp
from mlbench.training.sync.ddp.torch import synchronise as gradient_average
from mlbench.training.sync.zero1 import Config
from mlbench.training.worker import Worker


def synchronise(model: nn.Module, optimizer: torch.optim.Optimizer, config: Config, worker: Worker) -> Ddp:
    """Return DDP, and let the optimizer step this worker's share of the weights.

    torch's ZeroRedundancyOptimizer builds the optimizer itself. Here the task has built it and its schedule
    holds it. Optimizers skip a weight without gradient and make no state for it.
    """
    ddp = gradient_average(model, optimizer, config, worker)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    shares = shared_out(weights, worker.world_size)
    others = [w for rank, share in enumerate(shares) if rank != worker.rank for w in share]
    for weight in others:
        optimizer.state.pop(weight, None)  # what a task has filled in before the first step

    def before(*_: Any) -> None:
        for weight in others:
            weight.grad = None

    def after(*_: Any) -> None:
        with ddp.exchange.stamped():
            _send(shares, ddp.exchange)
        worker.timer.end_phase("transfer")

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return ddp


def shared_out(weights: list[torch.Tensor], workers: int) -> list[list[torch.Tensor]]:
    """Return the weights of each rank: the largest first, each to the rank that has least."""
    shares: list[list[torch.Tensor]] = [[] for _ in range(workers)]
    loads = [0] * workers
    for weight in sorted(weights, key=lambda weight: weight.numel(), reverse=True):
        rank = loads.index(min(loads))
        shares[rank].append(weight)
        loads[rank] += weight.numel()
    return shares


def _send(shares: list[list[torch.Tensor]], to_all: wire.Wire) -> None:
    """Give every worker the weights that each has stepped, in one message of each."""
    flats = [torch.cat([w.detach().flatten() for w in share]) if share else None for share in shares]
    works = [to_all.broadcast(flat, rank) for rank, flat in enumerate(flats) if flat is not None]
    for work in works:
        work.wait()
    for rank, (flat, share) in enumerate(zip(flats, shares, strict=True)):
        if flat is not None and rank != to_all.rank:
            wire.unflatten(flat, share)

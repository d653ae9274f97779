"""Gradients averaged by an all-reduce that overlaps with backward: torch's DistributedDataParallel."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mlbench.training.sync.ddp import Config
from mlbench.training.timer import PhaseTimer


def synchronise(model: nn.Module, config: Config, timer: PhaseTimer) -> "Local | Ddp":
    """Return what averages gradients over the workers while `model` trains.

    One worker trains the bare model: the base of every speed-up carries no cost of distribution. Buffers
    (running statistics) stay local while training and are averaged before a validation.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Local(model)
    cuda = next(model.parameters()).is_cuda
    wrapped = DistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()] if cuda else None,
        bucket_cap_mb=cast(Any, config.bucket_cap_mb),  # a float works; torch's annotation says int
        gradient_as_bucket_view=True,  # the reduced bucket is the gradient: no copy back
        forward_sync_buffers=False,
    )
    if timer.enabled:
        wrapped.register_comm_hook(timer, _timed_all_reduce)
    return Ddp(wrapped)


@dataclass(frozen=True)
class Local:
    """A single worker: nothing to combine."""

    module: nn.Module

    def accumulating(self) -> AbstractContextManager:
        """Return a context that changes nothing."""
        return nullcontext()

    def after_step(self, step: int) -> None:
        """Do nothing."""

    def before_validation(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Ddp:
    """Several workers: every gradient is the mean over them when backward ends."""

    module: DistributedDataParallel

    def accumulating(self) -> AbstractContextManager:
        """Return a context in which backward only accumulates; for all but a step's last micro-batch."""
        return self.module.no_sync()

    def after_step(self, step: int) -> None:
        """Do nothing: the gradients were averaged, so the weights are alike."""

    def before_validation(self) -> None:
        """Make the buffers one."""
        average_buffers(self.module.module)


def average_buffers(model: nn.Module) -> None:
    """Replace every floating-point buffer by its mean over the workers, in one collective."""
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    if not buffers or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    flat = torch.cat([buffer.flatten() for buffer in buffers])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for buffer, part in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))


def _timed_all_reduce(
    timer: PhaseTimer,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[torch.Tensor]:
    """Average one bucket, as DDP does without a hook, and stamp when it left and when it was reduced."""
    stamping = timer.stamping
    launch = timer.bucket_launched() if stamping else None
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    assert work is not None

    def reduced(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        if stamping:
            timer.bucket_reduced(launch)
        return future.value()[0]

    return work.get_future().then(reduced)

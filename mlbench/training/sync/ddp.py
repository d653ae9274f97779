"""How gradients are combined between workers: by name, around any model, timed bucket by bucket."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mlbench.experiment.config import Sync
from mlbench.training.timer import Tracker


def wrap(model: nn.Module, sync: Sync, tracker: Tracker) -> nn.Module:
    """Return `model` so that backward averages gradients over the workers.

    One worker trains the bare model: the base of every speed-up carries no cost of distribution. Buffers
    (running statistics) stay local while training; `average_buffers` makes them one before validation.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return model
    assert sync.name == "ddp", sync.name
    cuda = next(model.parameters()).is_cuda
    wrapped = DistributedDataParallel(
        model,
        device_ids=[torch.cuda.current_device()] if cuda else None,
        bucket_cap_mb=cast(Any, sync.bucket_cap_mb),  # a float works; torch's annotation says int
        gradient_as_bucket_view=True,  # the reduced bucket is the gradient: no copy back
        forward_sync_buffers=False,
    )
    if tracker.instrument:
        wrapped.register_comm_hook(tracker, _timed_all_reduce)
    return wrapped


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model below what `wrap` put around it."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def without_sync(model: nn.Module) -> AbstractContextManager:
    """Return a context in which backward only accumulates; for all but an update's last micro-batch."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


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
    tracker: Tracker,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[torch.Tensor]:
    """Average one bucket, as DDP does without a hook, and stamp when it left and when it arrived."""
    launch = tracker.launched()
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    assert work is not None

    def arrived(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        tracker.arrived(launch)
        return future.value()[0]

    return work.get_future().then(arrived)

"""Gradients averaged by an all-reduce that overlaps with backward: torch's DistributedDataParallel."""

from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mlbench.config.experiment import CAPTURED
from mlbench.training.sync.ddp import Config
from mlbench.training.sync.strategy import BareModel
from mlbench.training.sync.wire import Wire, all_reduce_bytes
from mlbench.training.timer import PhaseTimer
from mlbench.training.worker import Worker


def synchronise(model: nn.Module, optimizer: torch.optim.Optimizer, config: Config, worker: Worker) -> "Ddp":
    """Return what averages gradients over the workers while `model` trains.

    Buffers (running statistics) stay local while training and are averaged before a validation.
    """
    wrapped = wrap(model, config.bucket_cap_mb)
    if worker.timer.enabled and worker.compile not in CAPTURED:  # Python runs in no replay
        wrapped.register_comm_hook(worker.timer, _timed_all_reduce)
    size = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    return Ddp(wrapped, Wire(worker), all_reduce_bytes(size, worker.world_size))


def wrap(model: nn.Module, bucket_cap_mb: float) -> DistributedDataParallel:
    """Return the model under DDP with buckets of so many MiB."""
    weight = next(model.parameters())
    return DistributedDataParallel(
        model,
        device_ids=[weight.device] if weight.is_cuda else None,  # a loop of the user's may choose no device
        bucket_cap_mb=cast(Any, bucket_cap_mb),  # a float works, but torch's annotation is int
        gradient_as_bucket_view=True,  # the reduced bucket is the gradient: no copy back
        forward_sync_buffers=False,
    )


class Ddp(BareModel):
    """Every gradient is the mean over the workers when backward ends, so the weights are alike.

    - step_bytes: what this rank sends in a step in addition to what goes through `wire`.
    """

    def __init__(self, module: DistributedDataParallel, wire: Wire, step_bytes: int) -> None:
        super().__init__(module, wire)
        self.ddp, self.exchange, self.step_bytes = module, wire, step_bytes

    def accumulating(self) -> AbstractContextManager:
        """Return a context in which backward only accumulates."""
        return self.ddp.no_sync()

    def bytes_sent(self, steps: int) -> int:
        """Return the bytes that this rank has sent: DDP reduces the same gradients in every step."""
        return self.exchange.sent + steps * self.step_bytes


def _timed_all_reduce(
    timer: PhaseTimer,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[torch.Tensor]:
    """Average one bucket, as DDP does without a hook, and stamp when it left and when it was reduced."""
    stamping = timer.stamping
    launch = timer.bucket_launched() if stamping else None
    buffer = bucket.buffer().div_(dist.get_world_size())
    work = dist.all_reduce(buffer, async_op=True)
    assert work is not None

    def reduced(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        if stamping:
            timer.bucket_reduced(launch)
        return future.value()[0]

    if not bucket.is_last() or buffer.is_cuda:
        return work.get_future().then(reduced)
    # Backward has nothing left to overlap with, and to wait takes less than a callback in another thread.
    work.wait()
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    if stamping:
        timer.bucket_reduced(launch)
    return done

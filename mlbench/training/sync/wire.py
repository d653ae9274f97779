"""The collectives of a sync strategy: the one place that counts the bytes on the wire."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from mlbench.clusters import nccl_log
from mlbench.training.worker import Worker

LARGE_BYTES = 2**24  # of a message that NCCL sends by another algorithm than a number, chosen 2026-11-24
# Their names since torch 2.13, and before.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def connect(worker: Worker) -> None:
    """Let the backend make the connections of all collectives now. Every rank must call this, off the clock.

    NCCL makes its communicator at the first collective. It makes the connections of an algorithm at the first
    message that takes it, and those between two ranks at the first message between them. That takes 0.1 to 10
    s in all. DDP alone needs some before it trains, so the others would pay for theirs in step 0.
    """
    # One rank of each node reports what NCCL chose.
    told = worker.device.type == "cuda" and worker.backend == "nccl" and worker.local_rank == 0
    with nccl_log.recorded(worker.transport) if told else nullcontext():
        _connect(worker)


def _connect(worker: Worker) -> None:
    workers, device = worker.world_size, worker.device
    for size in (4, LARGE_BYTES) if device.type == "cuda" else (4,):
        part = torch.zeros(-(-size // (4 * workers)), device=device)
        whole = torch.zeros(len(part) * workers, device=device)
        dist.all_reduce(whole)
        all_gather_single(whole, part)
        reduce_scatter_single(part, whole)
        dist.all_to_all_single(torch.empty_like(whole), whole)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def all_reduce_bytes(size: int, workers: int) -> int:
    """Return the bytes that each worker sends for a ring all-reduce of `size` bytes.

    2 (k - 1) / k of them (Patarasuk and Yuan 2009), which no all-reduce among workers can undercut. gloo
    sends that much, and NCCL by ring. A switch that sums (NVLS, CollNet) takes about `size` from each worker,
    and MPI's libraries may choose another algorithm for short messages. Bytes are counted as a ring has them.
    """
    return 2 * (workers - 1) * size // workers


class Wire:
    """Collectives over all workers that count what this rank sends, without the headers of packets.

    - sent: bytes so far.
    """

    def __init__(self, worker: Worker) -> None:
        self.rank, self.workers, self.timer = worker.rank, worker.world_size, worker.timer
        self.sent = 0

    @contextmanager
    def stamped(self) -> Iterator[None]:
        """Stamp what is in the context as communication that nothing hides."""
        stamping = self.timer.stamping
        launch = self.timer.bucket_launched() if stamping else None
        yield
        if stamping:
            self.timer.bucket_reduced(launch)

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Sum a tensor over the workers, in its place. Return the work, which has begun."""
        self.sent += all_reduce_bytes(tensor.nbytes, self.workers)
        return dist.all_reduce(tensor, async_op=True)

    def all_gather(self, tensor: torch.Tensor) -> tuple[list[torch.Tensor], Any]:
        """Return the tensors of all ranks, in their order, and the work that fills them, which has begun."""
        self.sent += (self.workers - 1) * tensor.nbytes
        parts = [torch.empty_like(tensor) for _ in range(self.workers)]
        return parts, dist.all_gather(parts, tensor, async_op=True)

    def broadcast(self, tensor: torch.Tensor, source: int) -> Any:
        """Give all workers the tensor of rank `source`, in its place. Return the work, which has begun.

        Counted at the source, though others may pass it on: the sum over the ranks is right.
        """
        self.sent += (self.workers - 1) * tensor.nbytes if self.rank == source else 0
        return dist.broadcast(tensor, source, async_op=True)

    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        """Send row r of a tensor [workers, ...] to rank r. Return what the ranks sent, in their order."""
        self.sent += (self.workers - 1) * tensor.nbytes // self.workers
        received = torch.empty_like(tensor)
        dist.all_to_all_single(received, tensor)
        return received

    def exchange(self, tensor: torch.Tensor, to: Sequence[int], sources: Sequence[int]) -> list[torch.Tensor]:
        """Send a tensor to the ranks `to`. Return those of `sources`, in their order."""
        self.sent += len(to) * tensor.nbytes
        received = [torch.empty_like(tensor) for _ in sources]
        operations = [dist.P2POp(dist.isend, tensor, rank) for rank in to]
        operations += [
            dist.P2POp(dist.irecv, into, rank) for into, rank in zip(received, sources, strict=True)
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        return received

    def average(self, tensors: Sequence[torch.Tensor], message: str = "flat") -> None:
        """Replace every tensor by its mean over the workers, in one message. "layer": in one message each."""
        if message == "layer":
            for tensor in tensors:
                self.average([tensor])
            return
        if not tensors:
            return
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        self.all_reduce(flat).wait()
        flat /= self.workers
        unflatten(flat, tensors)


def unflatten(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy the parts of a vector to the tensors that it is made of."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    with torch.no_grad():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def float_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the buffers that can be averaged: running statistics, no counts."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]

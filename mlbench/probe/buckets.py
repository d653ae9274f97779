"""Stamps when DistributedDataParallel sends a bucket of gradients, and when it has come back."""

from typing import Any

from mlbench.probe import torch_private
from mlbench.probe.recording import Recording
from mlbench.probe.stamps import LAUNCH, REDUCED


def watch_buckets(recording: Recording, model: Any) -> None:
    """Give a DistributedDataParallel of all ranks a communication hook, unless it has one."""
    dist = recording.torch.distributed
    if not 1 < dist.get_world_size(model.process_group) == dist.get_world_size():
        return
    state = recording, model.process_group
    hooked = torch_private.add_comm_hook(model, state, _timed_all_reduce)
    recording.notes.add("buckets" if hooked else "own_hook")


def _timed_all_reduce(state, bucket):  # DDP refuses other annotations than its own
    """Average one bucket, to the last bit as DDP does without a hook, and stamp when it left and came."""
    recording, group = state
    torch = recording.torch
    launch = recording.mark(LAUNCH) if recording.watching else None
    buffer = bucket.buffer().mul_(1.0 / torch.distributed.get_world_size(group))
    recording.in_bucket = True
    try:
        work = torch.distributed.all_reduce(buffer, group=group, async_op=True)
    finally:
        recording.in_bucket = False

    def reduced(future: Any) -> Any:
        stamp_end()
        return future.value()[0]

    def stamp_end() -> None:
        if launch is not None and recording.watching:
            recording.stamps.append((REDUCED, launch, recording.now()))

    if not bucket.is_last() or buffer.is_cuda:
        return work.get_future().then(reduced)
    work.wait()  # backward has nothing left to overlap with
    stamp_end()
    done: Any = torch.futures.Future()
    done.set_result(buffer)
    return done

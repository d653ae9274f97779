"""DDP whose buckets are compressed before they travel.

A bucket's vector is this rank's share of the mean, its gradient over the number of workers plus what the
memory adds; results are sums of what all ranks sent. Time to encode is backward's; time to decode, and what
powersgd and sign_majority compute between their two collectives, is communication.
"""

from typing import Any

import torch
from torch import nn

from mlbench.training.sync import codecs
from mlbench.training.sync.compression import Config, Memory
from mlbench.training.sync.compression.majority import MajorityVote
from mlbench.training.sync.compression.memories import Bucket, Memories
from mlbench.training.sync.compression.powersgd import PowerSgd
from mlbench.training.sync.ddp.torch import Ddp, wrap
from mlbench.training.sync.wire import Wire
from mlbench.training.worker import Worker

Averaged = torch.futures.Future[torch.Tensor]


def synchronise(model: nn.Module, optimizer: torch.optim.Optimizer, config: Config, worker: Worker) -> Ddp:
    """Return what averages compressed gradients over the workers while `model` trains."""
    wrapped = wrap(model, config.bucket_cap_mb)
    wire = Wire(worker)
    if config.method == "sign_majority":
        compressor = MajorityVote(wire, worker)
    elif config.method == "powersgd":
        lost = Memories() if config.feedback == "error_feedback" else None
        compressor = PowerSgd(wire, worker, rank=config.rank, lost=lost)
    else:
        codec = codecs.of(config.method, config, worker, memory=config.feedback != "none")
        compressor = Compressor(codec, config.feedback, wire)
    wrapped.register_comm_hook(compressor, _average)
    return Ddp(wrapped, wire, step_bytes=0)


class Compressor:
    """Averages buckets that a codec compresses, with or without memory.

    - error_feedback: what a message left out is added to the next gradient (Stich et al. 2018, arXiv
      1809.07599; Karimireddy et al. 2019, arXiv 1901.09847), not yet times the learning rate.
    - ef21: the difference from this rank's last estimate of its gradient is sent; the gradient is the sum of
      all estimates (Richtarik et al. 2021, arXiv 2106.05203), which are 0 at first.
    """

    def __init__(self, codec: codecs.Codec, memory: Memory, wire: Wire) -> None:
        self.codec, self.memory, self.wire = codec, memory, wire
        self.own, self.sum = Memories(), Memories()
        self.step = 0

    def average(self, bucket: Bucket) -> Averaged:
        """Return the future of the bucket with the mean over the workers."""
        wire, timer = self.wire, self.wire.timer
        share = bucket.buffer().div_(wire.workers)
        own = self.own.of(bucket) if self.memory != "none" else share
        if self.memory == "error_feedback":
            share.add_(own)
        elif self.memory == "ef21":
            share.sub_(own)
        message = self.codec.encode(share, self.step, bucket.index())
        if self.memory == "error_feedback":
            own.copy_(message.subtracted(share))
        elif self.memory == "ef21":
            message.add(message.payload, own)
        total = self.sum.of(bucket) if self.memory == "ef21" else share.zero_()
        self.step += bucket.is_last()
        stamping = timer.stamping
        launch = timer.bucket_launched() if stamping else None
        if self.codec.summable:
            payloads, work = [message.payload], wire.all_reduce(message.payload)
        else:
            payloads, work = wire.all_gather(message.payload)

        def received(_: Any) -> torch.Tensor:
            for payload in payloads:
                if payload.is_cuda:  # the future knows the one buffer that was gathered, not its parts
                    payload.record_stream(torch.cuda.current_stream(payload.device))
                message.add(payload, total)
            if stamping:
                timer.bucket_reduced(launch)
            return total

        return work.get_future().then(received)


def _average(compressor: Any, bucket: Bucket) -> Averaged:
    return compressor.average(bucket)

"""DDP whose buckets are compressed before they travel.

A bucket's vector is this rank's share of the mean, its gradient over the number of workers plus what the
memory adds. Results are sums of what all ranks sent. Time to encode is part of backward. Time to decode, and
what powersgd and sign_majority compute between their two collectives, is communication.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mlbench.training.sync import codecs
from mlbench.training.sync.compression import Config, Memory
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
    wrapped.register_comm_hook(None, lambda _, bucket: compressor.average(bucket))
    return Ddp(wrapped, wire, step_bytes=0)


class Compressor:
    """Averages buckets that a codec compresses, with or without memory.

    - error_feedback: what a message left out is added to the next gradient (Stich et al. 2018, arXiv
      1809.07599, and Karimireddy et al. 2019, arXiv 1901.09847), not yet times the learning rate.
    - ef21: the difference from this rank's last estimate of its gradient is sent. The gradient is the sum of
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
                if payload.is_cuda:  # the future holds the one buffer that was gathered, not its parts
                    payload.record_stream(torch.cuda.current_stream(payload.device))
                message.add(payload, total)
            if stamping:
                timer.bucket_reduced(launch)
            return total

        return work.get_future().then(received)


class MajorityVote:
    """Replaces every coordinate of a bucket by the sign that most workers' gradients have: 1 or -1.

    Every rank counts the votes for a part of the coordinates and sends the result to the others. So a worker
    sends 2 (k - 1) / k bits a coordinate for any number of workers. Ties and votes of zeros are drawn, as a
    rule would drift (signSGD with majority vote, Bernstein et al. 2018, arXiv 1802.04434).
    """

    def __init__(self, wire: Wire, worker: Worker) -> None:
        self.wire, self.worker, self.step = wire, worker, 0

    def average(self, bucket: Bucket) -> Averaged:
        """Return the bucket with the majority's signs, in a future that is complete."""
        wire, vector = self.wire, bucket.buffer()
        workers, size = wire.workers, len(vector)
        generator = self.worker.generator(wire.rank, self.step, bucket.index())
        positive, zero = codecs.pack(vector > 0), codecs.pack(vector == 0)
        bits = positive | zero & torch.empty_like(zero).random_(256, generator=generator)
        bits = F.pad(bits, (0, -len(bits) % workers)).view(workers, -1)
        self.step += bucket.is_last()
        with wire.stamped():
            votes = codecs.unpack(wire.all_to_all(bits), 8 * bits.shape[1]).sum(dim=0)
            coins = torch.randint(2, votes.shape, generator=generator, device=votes.device)
            parts, work = wire.all_gather(codecs.pack(2 * votes + coins > workers))
            work.wait()
        vector.copy_(2 * codecs.unpack(torch.cat(parts), size).to(vector.dtype) - 1)
        future: Averaged = torch.futures.Future()
        future.set_result(vector)
        return future

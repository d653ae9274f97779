"""signSGD with majority vote (Bernstein et al. 2018, arXiv 1802.04434)."""

import torch
import torch.nn.functional as F

from mlbench.training.sync.codecs import pack, unpack
from mlbench.training.sync.compression.memories import Bucket
from mlbench.training.sync.wire import Wire
from mlbench.training.worker import Worker


class MajorityVote:
    """Replaces every coordinate of a bucket by the sign that most workers' gradients have: 1 or -1.

    Every rank counts the votes for a part of the coordinates and tells the others, so that a worker sends
    2 (k - 1) / k bits a coordinate, however many they are. Ties and votes of zeros are drawn: a rule would
    drift.
    """

    def __init__(self, wire: Wire, worker: Worker) -> None:
        self.wire, self.worker, self.step = wire, worker, 0

    def average(self, bucket: Bucket) -> "torch.futures.Future[torch.Tensor]":
        """Return the bucket with the majority's signs, in a future that is complete."""
        wire, vector = self.wire, bucket.buffer()
        workers, size = wire.workers, len(vector)
        generator = self.worker.generator(wire.rank, self.step, bucket.index())
        positive, zero = pack(vector > 0), pack(vector == 0)
        bits = positive | zero & torch.empty_like(zero).random_(256, generator=generator)
        bits = F.pad(bits, (0, -len(bits) % workers)).view(workers, -1)
        self.step += bucket.is_last()
        with wire.stamped():
            votes = unpack(wire.all_to_all(bits), 8 * bits.shape[1]).sum(dim=0)
            coins = torch.randint(2, votes.shape, generator=generator, device=votes.device)
            parts, work = wire.all_gather(pack(2 * votes + coins > workers))
            work.wait()
        vector.copy_(2 * unpack(torch.cat(parts), size).to(vector.dtype) - 1)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(vector)
        return future

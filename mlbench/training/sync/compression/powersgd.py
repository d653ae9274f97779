"""PowerSGD: gradients as products of two thin matrices (Vogels et al. 2019, arXiv 1905.13727)."""

import torch

from mlbench.training.sync.compression.memories import Bucket, Memories
from mlbench.training.sync.wire import Wire, unflatten
from mlbench.training.worker import Worker


class PowerSgd:
    """Averages buckets by one step of a subspace iteration for every matrix in them.

    M is the gradient of a weight as a matrix plus what was lost before, summed over the workers. P = M Q is
    all-reduced and made orthonormal. Q = M^T P is all-reduced. The mean is P Q^T. The next step begins with
    Q. Weights that are no matrix, or that the two would not make smaller, travel whole along with P.

    The two collectives wait for each other inside the bucket's turn, so that only the next bucket's gradient
    is late. torch's hook waits for the second in a thread of gloo's two, which all buckets share.
    """

    def __init__(self, wire: Wire, worker: Worker, *, rank: int, lost: Memories | None) -> None:
        self.wire, self.worker, self.rank, self.lost = wire, worker, rank, lost
        self._right: dict[int, torch.Tensor] = {}  # Q by the weight's id

    def average(self, bucket: Bucket) -> "torch.futures.Future[torch.Tensor]":
        """Return the bucket with the mean over the workers, in a future that is complete."""
        wire = self.wire
        share = bucket.buffer().div_(wire.workers)
        lost = self.lost.of(bucket) if self.lost is not None else None
        if lost is not None:
            share.add_(lost)
            lost.copy_(share)
        matrices, whole, rights = self._sorted(bucket)
        with wire.stamped():
            lefts = [matrix @ right for matrix, right in zip(matrices, rights, strict=True)]
            self._sum([*lefts, *whole])
            lefts = [_orthonormal(left) for left in lefts]
            for matrix, left, right in zip(matrices, lefts, rights, strict=True):
                torch.mm(matrix.T, left, out=right)
            self._sum(rights)
            for matrix, left, right in zip(matrices, lefts, rights, strict=True):
                torch.mm(left, right.T, out=matrix)
        if lost is not None:
            lost.sub_(share / wire.workers)
            parts = lost.split([gradient.numel() for gradient in bucket.gradients()])
            for part, gradient in zip(parts, bucket.gradients(), strict=True):
                if not self._shrinks(gradient):
                    part.zero_()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(share)
        return future

    def _sorted(self, bucket: Bucket) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Return the bucket's matrices, what travels whole, and Q of every matrix."""
        matrices, whole, rights = [], [], []
        for weight, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if not self._shrinks(gradient):
                whole.append(gradient)
                continue
            matrix = gradient.view(gradient.shape[0], -1)
            matrices.append(matrix)
            if id(weight) not in self._right:
                generator = self.worker.generator(len(self._right))
                shape = matrix.shape[1], min(self.rank, *matrix.shape)
                first = torch.randn(shape, generator=generator, device=matrix.device, dtype=matrix.dtype)
                self._right[id(weight)] = first
            rights.append(self._right[id(weight)])
        return matrices, whole, rights

    def _shrinks(self, gradient: torch.Tensor) -> bool:
        if gradient.ndim < 2:
            return False
        rows, columns = gradient.shape[0], gradient[0].numel()
        return (rows + columns) * self.rank < rows * columns

    def _sum(self, tensors: list[torch.Tensor]) -> None:
        if tensors:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            self.wire.all_reduce(flat).wait()
            unflatten(flat, tensors)


def _orthonormal(left: torch.Tensor) -> torch.Tensor:
    """Return a basis of the columns. torch 2.13 has no QR decomposition of halves."""
    return torch.linalg.qr(left.to(torch.promote_types(left.dtype, torch.float32))).Q.to(left.dtype)

"""What a compressor remembers of every weight, as one vector a bucket."""

import torch
import torch.distributed as dist

Bucket = dist.GradBucket  # pyright: ignore[reportPrivateImportUsage]


class Memories:
    """A vector for each bucket, 0 at first.

    DDP forms its buckets again after the first step. What is remembered belongs to the weights, so it moves
    with them.
    """

    def __init__(self) -> None:
        self._layouts: dict[int, tuple[list[int], torch.Tensor]] = {}
        self._parts: dict[int, torch.Tensor] = {}  # views of the vectors, by the weight's id

    def of(self, bucket: Bucket) -> torch.Tensor:
        """Return the bucket's vector. Change it in place."""
        weights = bucket.parameters()
        layout = [id(weight) for weight in weights]
        old_layout, vector = self._layouts.get(bucket.index(), ([], torch.empty(0)))
        if old_layout != layout:
            parts = [self._parts.get(id(w), torch.zeros_like(w).flatten()) for w in weights]
            vector = torch.cat(parts)
            pieces = vector.split([len(part) for part in parts])
            self._parts.update(zip(layout, pieces, strict=True))
            self._layouts[bucket.index()] = layout, vector
        return vector

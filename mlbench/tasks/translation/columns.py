"""Columns of sub-words to gather batches from, on the device where they are small enough."""

import numpy as np
import torch

from mlbench.tasks.translation.data import Pairs
from mlbench.tasks.translation.subwords import BOS, EOS, PAD
from mlbench.training.copies import CopyStream

RESIDENT = 2 << 30  # bytes; sub-words of at most this size are kept on the GPU, chosen 2026-11-21


def columns(pairs: Pairs, device: torch.device) -> tuple["RaggedColumn", "RaggedColumn"]:
    """Return the source and the target column."""
    small = pairs.sources.nbytes + pairs.targets.nbytes <= RESIDENT
    storage = device if small else torch.device("cpu")
    return (
        RaggedColumn(pairs.sources, pairs.source_offsets, device, storage=storage),
        RaggedColumn(pairs.targets, pairs.target_offsets, device, storage=storage),
    )


class RaggedColumn:
    """Sentences of one language: lengths [sentences] int64, without BOS and EOS."""

    def __init__(
        self, values: np.ndarray, offsets: np.ndarray, device: torch.device, *, storage: torch.device
    ) -> None:
        self.lengths = np.diff(offsets)
        self.to_device = CopyStream(device)
        # torch.from_numpy warns about read-only memory; the exchange protocol carries the flag.
        self.values = torch.from_dlpack(values).to(storage)
        self.offsets = torch.from_dlpack(offsets).to(storage)

    def gather(
        self, rows: np.ndarray, width: int, *, begin: bool = False, max_length: int | None = None
    ) -> torch.Tensor:
        """Return sentences as [rows, width] int64 with EOS, padded, after BOS if `begin`."""
        at = torch.from_numpy(rows)
        if self.values.is_cuda:
            at = self.to_device(at)
        start = self.offsets[at][:, None]
        length = self.offsets[at + 1][:, None] - start
        if max_length is not None:
            length = length.clamp(max=max_length)
        position = torch.arange(width, device=at.device) - int(begin)
        inside = position < length
        ids = self.values[torch.where(inside, start + position.clamp(min=0), 0)].long()
        ids = torch.where(inside, ids, torch.where(position == length, EOS, PAD))
        if begin:
            ids[:, 0] = BOS
        return self.to_device(ids)

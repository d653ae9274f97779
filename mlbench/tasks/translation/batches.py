"""Batches of sentences of similar length, the same global ones whatever the number of workers.

Sentences are shuffled, sorted by length, and cut into chunks. A step has a fixed number of chunks. Each
worker takes its share of a step's chunks as its micro-batches. If there are fewer chunks than workers, ranks
share a chunk, row by row. So the sentences of a step, and with them the sum of its gradients, do not depend
on the number of workers. Every rank has the same number of micro-batches.

- A budget of sentences: chunks have equally many sentences, and a step is made of neighbours in length. So
  ranks that work side by side take equally long (as in Vaswani et al. 2017's tensor2tensor).
- A budget of tokens: chunks have equally many padded tokens, so they cost the same whatever their lengths. A
  step mixes chunks of any length (as fairseq does).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from mlbench.tasks.steps import EpochSteps
from mlbench.tasks.translation.chunks import BatchBudget, cannot_share, cut
from mlbench.tasks.translation.data import Pairs
from mlbench.tasks.translation.subwords import BOS, EOS, PAD
from mlbench.training.copies import CopyStream
from mlbench.training.worker import Worker

RESIDENT = 2 << 30  # bytes. Sub-words of at most this size are kept on the GPU, chosen 2026-11-21


@dataclass(frozen=True)
class MicroBatch:
    """Some sentences on the worker's device, int64, padded with PAD, the longest source first.

    - source [n, s]: sub-words and EOS. source_lengths [n] counts them, and stays in the host's memory.
    - target [n, t + 1]: BOS, sub-words, EOS.
    - target_tokens: of this micro-batch, each EOS included and no BOS. step_...: of all ranks' micro-batches
      of this step together, to divide by.
    """

    source: torch.Tensor
    source_lengths: torch.Tensor
    target: torch.Tensor
    source_tokens: int
    target_tokens: int
    step_sentences: int
    step_target_tokens: int

    @property
    def target_in(self) -> torch.Tensor:
        """What the decoder reads, [n, t]. A shorter sentence is followed by its EOS, whose output is PAD."""
        return self.target[:, :-1]

    @property
    def target_out(self) -> torch.Tensor:
        """The decoder's target output, [n, t]."""
        return self.target[:, 1:]


class BucketedSteps:
    """Makes the steps of an epoch. Called with the epoch's number, as `TrainingSetup.steps` is.

    Sentences with an empty side, or one of more than `max_length` sub-words, are left out. Every other one
    comes once an epoch, except a rest drawn at random. It is less than one step, and under a budget of tokens
    up to 7 of the shortest in addition. Raises UserError if there is less than one step, or if chunks are too
    small to give every rank a sentence in each micro-batch.

    - padding: share of the positions of both sides' matrices that hold no sub-word, BOS or EOS.
    """

    def __init__(self, pairs: Pairs, budget: BatchBudget, *, max_length: int, worker: Worker) -> None:
        self.worker, self.budget = worker, budget
        self.source, self.target = columns(pairs, worker.device)
        plan = cut(self.source.lengths, self.target.lengths, budget, max_length=max_length)
        self.rows, self.lengths, self.keys, self.starts = plan
        self.sentences = np.diff(self.starts)
        in_order = self.lengths[:, np.argsort(self.keys, kind="stable")][:, : self.starts[-1]]
        widest = np.maximum.reduceat(in_order, self.starts[:-1], axis=1)
        self.padding = float(1 - in_order.sum() / (widest.sum(0) * self.sentences).sum())
        # Ranks fall into groups: group i takes every n-th chunk from the i-th on and shares each row by row.
        self.groups = math.gcd(budget.chunks, worker.world_size)
        self.ranks_per_chunk = worker.world_size // self.groups
        self.micro_batches = self._micro_batches(
            np.ones(1, int) if budget.kind == "sentences" else widest.max(0)
        )

    def __len__(self) -> int:
        return (len(self.starts) - 1) // self.budget.chunks

    def __call__(self, epoch: int) -> EpochSteps:
        generator = self.worker.generator(epoch)
        rows = self._shuffled(len(self.rows), generator)
        if self.budget.kind == "sentences":
            rows = rows[: self.starts[-1]]
            neighbours = np.arange(len(self) * self.budget.chunks).reshape(len(self), -1)
            chunks = neighbours[self._shuffled(len(self), generator)]
        else:
            chunks = self._shuffled(len(self.starts) - 1, generator)
            chunks = chunks[: len(self) * self.budget.chunks].reshape(len(self), -1)
        rows = rows[np.argsort(self.keys[rows], kind="stable")]
        step = partial(self._step, self.rows[rows], self.lengths[:, rows])
        return EpochSteps(len(self), lambda: map(step, chunks))

    def _shuffled(self, count: int, generator: torch.Generator) -> np.ndarray:
        return torch.randperm(count, generator=generator, device=self.worker.device).cpu().numpy()

    def _micro_batches(self, cost: np.ndarray) -> int:
        """Return into how many micro-batches a rank must cut its share of a chunk. cost is a sentence's."""
        micro_batches = 1
        while micro_batches * self.ranks_per_chunk <= self.sentences.min():
            rows = -(-self.sentences // (micro_batches * self.ranks_per_chunk))
            if (rows * cost).max() <= self.budget.micro_batch:
                return micro_batches
            micro_batches += 1
        raise cannot_share(self.budget, workers=self.worker.world_size)

    def _step(self, rows: np.ndarray, lengths: np.ndarray, chunks: np.ndarray) -> list[MicroBatch]:
        """Return this rank's part of the step that is made of `chunks`.

        The epoch's sentences by length: rows [sentences] are their numbers in the training split, lengths
        [2, sentences] those of both sides, with EOS.
        """
        starts = self.starts
        sentences = int(self.sentences[chunks].sum())
        target_tokens = sum(int(lengths[1, starts[u] : starts[u + 1]].sum()) for u in chunks)
        share, group = divmod(self.worker.rank, self.groups)
        stride = self.ranks_per_chunk * self.micro_batches
        made = []
        for chunk in chunks[group :: self.groups]:
            for micro_batch in range(self.micro_batches):
                places = slice(
                    starts[chunk] + share * self.micro_batches + micro_batch, starts[chunk + 1], stride
                )
                chosen, (source, target) = rows[places], lengths[:, places]
                made.append(
                    MicroBatch(
                        source=self.source.gather(chosen, int(source.max())),
                        source_lengths=torch.from_numpy(source),
                        target=self.target.gather(chosen, int(target.max()) + 1, begin=True),
                        source_tokens=int(source.sum()),
                        target_tokens=int(target.sum()),
                        step_sentences=sentences,
                        step_target_tokens=target_tokens,
                    )
                )
        return made


@dataclass(frozen=True)
class TestBatch:
    """Sentences to translate: `rows` are their numbers in the test split. The rest as in MicroBatch."""

    rows: list[int]
    source: torch.Tensor
    source_lengths: torch.Tensor


def test_batches(pairs: Pairs, *, sentences: int, max_length: int, worker: Worker) -> Iterator[TestBatch]:
    """Yield this rank's share of all test sentences, the longest first, `sentences` at a time.

    Every sentence belongs to one rank. What is longer than `max_length` sub-words is cut there, not left out:
    the score is of the whole test set.
    """
    column, _ = columns(pairs, worker.device)
    lengths = np.minimum(column.lengths, max_length) + 1
    own = np.argsort(-lengths, kind="stable")[worker.rank :: worker.world_size]
    for begin in range(0, len(own), sentences):
        rows = own[begin : begin + sentences]
        source = column.gather(rows, int(lengths[rows].max()), max_length=max_length)
        yield TestBatch(rows.tolist(), source, torch.from_numpy(lengths[rows]))


def columns(pairs: Pairs, device: torch.device) -> tuple["RaggedColumn", "RaggedColumn"]:
    """Return the source and the target column to gather from, on the device if they are small enough."""
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
        # torch.from_numpy warns about read-only memory. The exchange protocol carries the flag.
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

"""Batches of sentences of similar length, the same global ones whatever the number of workers.

Sentences are shuffled, sorted by length, and cut into units: the micro-batches of a worker when there are
few workers. An update is a fixed number of units. With k workers each takes its share of an update's units;
where the units do not go round, ranks share units, row by row. So the sentences of an update, and with them
the sum of its gradients, do not depend on k, and every rank has the same number of micro-batches.

- A budget of sentences: units have equally many sentences, and an update is made of neighbours in length, so
  that ranks which work side by side need equally long (as in Vaswani et al. 2017's tensor2tensor).
- A budget of tokens: units have equally many padded tokens, so they cost the same whatever their lengths, and
  an update mixes units of any length (as fairseq does).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mlbench.errors import UserError
from mlbench.tasks.common.translation.columns import columns
from mlbench.tasks.common.translation.data import Pairs
from mlbench.worker import Worker

ROWS = 8  # a unit's sentences are a multiple of this under a budget of tokens: what tensor cores want


@dataclass(frozen=True)
class Budget:
    """What an update of all workers together may hold, and a micro-batch of one worker at most.

    Padded tokens of a unit: sentences x the longest of their sides, EOS included.
    """

    kind: Literal["sentences", "tokens"]
    update: int
    micro_batch: int

    @property
    def units(self) -> int:
        """Units an update is made of; UserError unless equal ones make it up exactly."""
        units = math.ceil(self.update / self.micro_batch)
        if self.update % units:
            raise UserError(
                f"an update of {self.update:,} {self.kind} cannot be made of equal micro-batches of at most "
                f"{self.micro_batch:,}",
                hint="choose a micro-batch that divides the update",
            )
        return units


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some sentences on the worker's device, int64, padded with PAD, the longest source first.

    - source [n, s]: sub-words and EOS; source_lengths [n] counts them, and stays in the host's memory.
    - target [n, t + 1]: BOS, sub-words, EOS.
    - target_tokens: of this micro-batch, each EOS included and no BOS; update_...: of all ranks'
      micro-batches of this update together, to divide by.
    """

    source: torch.Tensor
    source_lengths: torch.Tensor
    target: torch.Tensor
    source_tokens: int
    target_tokens: int
    update_sentences: int
    update_target_tokens: int

    def __len__(self) -> int:
        return len(self.source)

    @property
    def target_in(self) -> torch.Tensor:
        """What the decoder reads, [n, t]; behind a shorter sentence stands its EOS, whose output is PAD."""
        return self.target[:, :-1]

    @property
    def target_out(self) -> torch.Tensor:
        """What it is to say, [n, t]."""
        return self.target[:, 1:]


class BucketedUpdates:
    """Makes the updates of an epoch; to be called with the epoch's number, as `Parts.updates` is.

    Sentences with a side of more than `longest` sub-words, or an empty one, are left out. Of the others every
    one comes once an epoch, but for a rest of less than one update and one unit: whole units drawn at
    random, and the few of the shortest sentences that fill no unit. Raises UserError if there is less than
    one update, or if units are too small for every rank to have a sentence of each.

    - padding: share of the positions of both sides' matrices that hold no sub-word, BOS or EOS.
    """

    def __init__(self, pairs: Pairs, budget: Budget, *, longest: int, worker: Worker) -> None:
        self.worker, self.budget = worker, budget
        self.source, self.target = columns(pairs, worker.device)
        source, target = self.source.lengths, self.target.lengths
        fits = (np.minimum(source, target) > 0) & (np.maximum(source, target) <= longest)
        self.rows = np.flatnonzero(fits)
        self.keys = _keys(source[self.rows] + 1, target[self.rows] + 1)
        # Equal keys are equal lengths: of each place in the sorted order the lengths are known for ever.
        order = self.rows[np.argsort(self.keys, kind="stable")]
        self.lengths = np.stack([source[order], target[order]]) + 1
        self.starts = _cut(self.lengths.max(0), budget)
        self._check()
        first, last = self.starts[:-1], self.starts[1:]
        self.sentences = last - first
        self.target_tokens = np.add.reduceat(self.lengths[1][: last[-1]], first)
        widest = np.maximum.reduceat(self.lengths[:, : last[-1]], first, axis=1)
        self.padding = 1 - self.lengths[:, : last[-1]].sum() / (widest.sum(0) * self.sentences).sum()

    def __len__(self) -> int:
        return (len(self.starts) - 1) // self.budget.units

    def __call__(self, epoch: int) -> "Epoch":
        generator = self.worker.generator(epoch)
        shuffled = self._shuffled(len(self.rows), generator)
        order = self.rows[shuffled[np.argsort(self.keys[shuffled], kind="stable")]]
        units = self._shuffled(len(self.starts) - 1, generator)[: len(self) * self.budget.units]
        if self.budget.kind == "sentences":
            neighbours = np.sort(units).reshape(len(self), -1)
            units = neighbours[self._shuffled(len(self), generator)]
        return Epoch(self, order, units.reshape(len(self), -1))

    def _shuffled(self, count: int, generator: torch.Generator) -> np.ndarray:
        return torch.randperm(count, generator=generator, device=self.worker.device).cpu().numpy()

    def _check(self) -> None:
        units = len(self.starts) - 1
        if units < self.budget.units:
            raise UserError(
                f"{len(self.rows):,} sentence pairs are less than one update of "
                f"{self.budget.update:,} {self.budget.kind}",
                hint="give more text, or choose a smaller update in division=open",
            )
        sharing = self.worker.world_size // math.gcd(self.budget.units, self.worker.world_size)
        if np.diff(self.starts).min() < sharing:
            raise UserError(
                f"{self.worker.world_size} workers cannot share an update of {self.budget.update:,} "
                f"{self.budget.kind}: some would get no sentence",
                hint="use fewer workers",
            )


@dataclass(frozen=True)
class Epoch:
    """One epoch's updates of this rank: order [sentences] are rows by length, units [updates, units]."""

    plan: BucketedUpdates
    order: np.ndarray
    units: np.ndarray

    def __len__(self) -> int:
        return len(self.units)

    def __iter__(self) -> Iterator[list[MicroBatch]]:
        return map(self._update, self.units)

    def _update(self, units: np.ndarray) -> list[MicroBatch]:
        plan, worker = self.plan, self.plan.worker
        sentences = int(plan.sentences[units].sum())
        target_tokens = int(plan.target_tokens[units].sum())
        groups = math.gcd(len(units), worker.world_size)
        part, group = divmod(worker.rank, groups)
        made = []
        for unit in units[group::groups]:
            places = slice(plan.starts[unit] + part, plan.starts[unit + 1], worker.world_size // groups)
            source, target = plan.lengths[:, places]
            rows = self.order[places]
            made.append(
                MicroBatch(
                    source=plan.source.gather(rows, int(source.max())),
                    source_lengths=torch.from_numpy(source),
                    target=plan.target.gather(rows, int(target.max()) + 1, begin=True),
                    source_tokens=int(source.sum()),
                    target_tokens=int(target.sum()),
                    update_sentences=sentences,
                    update_target_tokens=target_tokens,
                )
            )
        return made


@dataclass(frozen=True, slots=True)
class TestBatch:
    """Sentences to translate: `rows` are their numbers in the test split; the rest as in MicroBatch."""

    rows: list[int]
    source: torch.Tensor
    source_lengths: torch.Tensor

    def __len__(self) -> int:
        return len(self.rows)


def test_batches(pairs: Pairs, *, sentences: int, longest: int, worker: Worker) -> Iterator[TestBatch]:
    """Yield this rank's share of all test sentences, the longest first, `sentences` at a time.

    Every sentence belongs to one rank. What is longer than `longest` sub-words is cut there, not left out:
    the score is of the whole test set.
    """
    column, _ = columns(pairs, worker.device)
    lengths = np.minimum(column.lengths, longest) + 1
    own = np.argsort(-lengths, kind="stable")[worker.rank :: worker.world_size]
    for begin in range(0, len(own), sentences):
        rows = own[begin : begin + sentences]
        source = column.gather(rows, int(lengths[rows].max()), longest=longest)
        yield TestBatch(rows.tolist(), source, torch.from_numpy(lengths[rows]))


def _keys(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return numbers that sort by source length, the longest first, then by target length.

    The target's direction alternates, so that a unit that spans two source lengths has targets alike.
    """
    width = int(target.max(initial=0)) + 1
    snake = np.where(source % 2, target, width - 1 - target)
    keys = (int(source.max(initial=0)) - source) * width + snake
    return keys.astype(np.min_scalar_type(int(keys.max(initial=0))))  # numpy sorts 16 bits by counting


def _cut(lengths: np.ndarray, budget: Budget) -> np.ndarray:
    """Return the boundaries of units [units + 1] in a sorted order of sentences with these lengths."""
    most = budget.update // budget.units
    if budget.kind == "sentences":
        return np.arange(len(lengths) // most + 1) * most
    starts = [0]
    while starts[-1] < len(lengths):
        ahead = lengths[starts[-1] : starts[-1] + most]
        padded = np.maximum.accumulate(ahead) * np.arange(1, len(ahead) + 1)
        rows = int(np.searchsorted(padded, most, side="right")) // ROWS * ROWS
        if not rows:
            break
        starts.append(starts[-1] + rows)
    return np.array(starts)

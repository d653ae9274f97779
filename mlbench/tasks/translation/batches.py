"""Batches of sentences of similar length, the same global ones whatever the number of workers.

Sentences are shuffled, sorted by length, and cut into units: the micro-batches of a worker, as long as they
go round. An update is a fixed number of units. With k workers each takes its share of an update's units;
where they do not go round, ranks share units, row by row. So the sentences of an update, and with them the
sum of its gradients, do not depend on k, and every rank has the same number of micro-batches.

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

from mlbench.experiment.errors import UserError
from mlbench.tasks.translation.columns import columns
from mlbench.tasks.translation.data import Pairs
from mlbench.training.worker import Worker

# Under a budget of tokens, chosen 2026-11-21: a unit has at least so many sentences that some ranks can share
# it; where it has many, their number is a multiple of what tensor cores want of a matrix's sides.
LEAST_ROWS, MANY_ROWS, ALIGNED = 8, 64, 8


@dataclass(frozen=True)
class Budget:
    """What an update of all workers together holds, and a micro-batch of one worker at most.

    Padded tokens of a unit: sentences x the longest of their sides, EOS included. Which sentences meet in an
    update of tokens depends on the units it is made of; by default as many as make one the largest
    micro-batch. Raises UserError unless equal units make up the update exactly.
    """

    kind: Literal["sentences", "tokens"]
    update: int
    micro_batch: int
    units: int = 0

    def __post_init__(self) -> None:
        units = self.units or math.ceil(self.update / self.micro_batch)
        if self.update % units:
            raise UserError(
                f"an update of {self.update:,} {self.kind} cannot be made of {units} equal units",
                hint="choose micro-batches that divide the update",
            )
        object.__setattr__(self, "units", units)


@dataclass(frozen=True)
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
    """Makes the updates of an epoch; to be called with the epoch's number, as `TrainingSetup.steps` is.

    Sentences with a side of more than `longest` sub-words, or an empty one, are left out. Of the others every
    one comes once an epoch, but for a rest drawn at random: less than one update, and under a budget of
    tokens up to 7 of the shortest besides. Raises UserError if there is less than one update, or if units are
    too small for every rank to have a sentence in each micro-batch.

    - padding: share of the positions of both sides' matrices that hold no sub-word, BOS or EOS.
    """

    def __init__(self, pairs: Pairs, budget: Budget, *, longest: int, worker: Worker) -> None:
        self.worker, self.budget = worker, budget
        self.source, self.target = columns(pairs, worker.device)
        source, target = self.source.lengths, self.target.lengths
        fits = (np.minimum(source, target) > 0) & (np.maximum(source, target) <= longest)
        self.rows = np.flatnonzero(fits)
        self.lengths = np.stack([source, target])[:, self.rows] + 1  # with EOS
        self.keys = _keys(*self.lengths)
        in_order = self.lengths[:, np.argsort(self.keys, kind="stable")]
        self.starts = _cut(in_order.max(0), budget)
        if not len(self):
            raise UserError(
                f"{len(self.rows):,} sentence pairs are less than one update of "
                f"{budget.update:,} {budget.kind}",
                hint="give more text, or choose a smaller update in division=open",
            )
        self.sentences = np.diff(self.starts)
        in_order = in_order[:, : self.starts[-1]]
        widest = np.maximum.reduceat(in_order, self.starts[:-1], axis=1)
        self.padding = float(1 - in_order.sum() / (widest.sum(0) * self.sentences).sum())
        # Ranks fall into groups: a group takes every so manieth unit, and shares each row by row.
        self.groups = math.gcd(budget.units, worker.world_size)
        self.sharing = worker.world_size // self.groups
        self.pieces = self._pieces(np.ones(1, int) if budget.kind == "sentences" else widest.max(0))

    def __len__(self) -> int:
        return (len(self.starts) - 1) // self.budget.units

    def __call__(self, epoch: int) -> "Epoch":
        generator = self.worker.generator(epoch)
        rows = self._shuffled(len(self.rows), generator)
        if self.budget.kind == "sentences":
            rows = rows[: self.starts[-1]]
            neighbours = np.arange(len(self) * self.budget.units).reshape(len(self), -1)
            units = neighbours[self._shuffled(len(self), generator)]
        else:
            units = self._shuffled(len(self.starts) - 1, generator)
            units = units[: len(self) * self.budget.units].reshape(len(self), -1)
        rows = rows[np.argsort(self.keys[rows], kind="stable")]
        return Epoch(self, units, self.rows[rows], self.lengths[:, rows])

    def _shuffled(self, count: int, generator: torch.Generator) -> np.ndarray:
        return torch.randperm(count, generator=generator, device=self.worker.device).cpu().numpy()

    def _pieces(self, cost: np.ndarray) -> int:
        """Return into how many micro-batches a rank must cut its share of a unit; cost is a sentence's."""
        pieces = 1
        while pieces * self.sharing <= self.sentences.min():
            rows = -(-self.sentences // (pieces * self.sharing))
            if (rows * cost).max() <= self.budget.micro_batch:
                return pieces
            pieces += 1
        raise UserError(
            f"{self.worker.world_size} workers with micro-batches of {self.budget.micro_batch:,} "
            f"{self.budget.kind} cannot share updates of {self.budget.update:,}: some would get no sentence",
            hint="use fewer workers or larger micro-batches",
        )


@dataclass(frozen=True)
class Epoch:
    """One epoch's updates of this rank: units [updates, units] of sentences in the order of their lengths.

    rows [sentences]: their numbers in the training split; lengths [2, sentences]: of both sides, with EOS.
    """

    plan: BucketedUpdates
    units: np.ndarray
    rows: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.units)

    def __iter__(self) -> Iterator[list[MicroBatch]]:
        return map(self._update, self.units)

    def _update(self, units: np.ndarray) -> list[MicroBatch]:
        plan, starts = self.plan, self.plan.starts
        sentences = int(plan.sentences[units].sum())
        target_tokens = sum(int(self.lengths[1, starts[u] : starts[u + 1]].sum()) for u in units)
        share, group = divmod(plan.worker.rank, plan.groups)
        stride = plan.sharing * plan.pieces
        made = []
        for unit in units[group :: plan.groups]:
            for piece in range(plan.pieces):
                places = slice(starts[unit] + share * plan.pieces + piece, starts[unit + 1], stride)
                rows, (source, target) = self.rows[places], self.lengths[:, places]
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


@dataclass(frozen=True)
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
        return np.arange(len(lengths) // budget.update * budget.units + 1) * most
    starts = [0]
    while starts[-1] < len(lengths):
        ahead = lengths[starts[-1] : starts[-1] + most]
        padded = np.maximum.accumulate(ahead) * np.arange(1, len(ahead) + 1)
        rows = int(np.searchsorted(padded, most, side="right"))
        if rows < LEAST_ROWS:
            if len(ahead) < LEAST_ROWS:
                break
            raise UserError(
                f"{most:,} padded tokens do not hold {LEAST_ROWS} sentences of {ahead[0]}",
                hint="choose larger micro-batches or a smaller length limit",
            )
        starts.append(starts[-1] + (rows - rows % ALIGNED if rows >= MANY_ROWS else rows))
    return np.array(starts)

"""Chunks of sentences of similar length, of which steps are made. No torch, for the driver too."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from mlbench.config.errors import UserError

# Under a budget of tokens a chunk has at least MIN_ROWS sentences, so that ranks can share it. From MANY_ROWS
# on, their number is a multiple of ALIGNED, as tensor cores need. Chosen 2026-11-21.
MIN_ROWS, MANY_ROWS, ALIGNED = 8, 64, 8


@dataclass(frozen=True)
class BatchBudget:
    """What a step of all workers together holds, and a micro-batch of one worker at most.

    Padded tokens of a chunk: sentences x the longest of their sides, EOS included. Which sentences meet in a
    step of tokens depends on its chunks. Raises UserError unless equal chunks make up the step exactly.
    """

    kind: Literal["sentences", "tokens"]
    global_batch: int
    micro_batch: int
    chunks: int

    def __post_init__(self) -> None:
        if self.global_batch % self.chunks:
            raise UserError(
                f"a step of {self.global_batch:,} {self.kind} cannot be made of {self.chunks} equal chunks",
                hint="choose a task.chunks that divides task.global_batch_size",
            )


class Chunks(NamedTuple):
    """The sentence pairs that are trained on, and the cuts of their order by length.

    - rows [pairs]: their numbers in the training split. lengths [2, pairs]: of both sides, with EOS.
    - keys [pairs]: what sorts them by length. starts [chunks + 1]: boundaries in that order.
    """

    rows: np.ndarray
    lengths: np.ndarray
    keys: np.ndarray
    starts: np.ndarray


def cut(source: np.ndarray, target: np.ndarray, budget: BatchBudget, *, max_length: int) -> Chunks:
    """Cut pairs of these lengths [pairs] into chunks, without those of an empty or too long side.

    Raises UserError if there is less than one step, or a chunk of tokens does not hold MIN_ROWS sentences.
    """
    fits = (np.minimum(source, target) > 0) & (np.maximum(source, target) <= max_length)
    rows = np.flatnonzero(fits)
    lengths = np.stack([source, target])[:, rows] + 1  # with EOS
    keys = _keys(*lengths)
    starts = _boundaries(lengths[:, np.argsort(keys, kind="stable")].max(0), budget)
    if len(starts) <= budget.chunks:
        raise UserError(
            f"{len(rows):,} sentence pairs are fewer than one step of {budget.global_batch:,} {budget.kind}",
            hint="give more text, or a smaller task.global_batch_size in division=open",
        )
    return Chunks(rows, lengths, keys, starts)


def require_share(budget: BatchBudget, *, workers: int, smallest: int | None = None) -> None:
    """Raise UserError if one of the ranks that share a chunk would get no sentence.

    `smallest` is the number of sentences of the smallest chunk. Without it, a chunk of tokens holds at most
    one sentence for every two tokens, a word and EOS.
    """
    ranks = workers // math.gcd(budget.chunks, workers)
    if smallest is None:
        smallest = budget.global_batch // budget.chunks // (1 if budget.kind == "sentences" else 2)
    if ranks > smallest:
        raise cannot_share(budget, workers=workers)


def cannot_share(budget: BatchBudget, *, workers: int) -> UserError:
    """Return the error for more workers than a step has sentences for."""
    return UserError(
        f"{workers} workers with micro-batches of {budget.micro_batch:,} {budget.kind} "
        f"cannot share steps of {budget.global_batch:,}: some would get no sentence",
        hint="use fewer workers or larger micro-batches",
    )


def _keys(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return numbers that sort by source length, the longest first, then by target length.

    The target's direction alternates, so that a chunk that spans two source lengths has targets alike.
    """
    width = int(target.max(initial=0)) + 1
    snake = np.where(source % 2, target, width - 1 - target)
    keys = (int(source.max(initial=0)) - source) * width + snake
    return keys.astype(np.min_scalar_type(int(keys.max(initial=0))))  # numpy sorts 16 bits by counting


def _boundaries(lengths: np.ndarray, budget: BatchBudget) -> np.ndarray:
    """Return the boundaries of chunks [chunks + 1] in a sorted order of sentences with these lengths."""
    most = budget.global_batch // budget.chunks
    if budget.kind == "sentences":
        return np.arange(len(lengths) // budget.global_batch * budget.chunks + 1) * most
    starts = [0]
    while starts[-1] < len(lengths):
        ahead = lengths[starts[-1] : starts[-1] + most]
        padded = np.maximum.accumulate(ahead) * np.arange(1, len(ahead) + 1)
        rows = int(np.searchsorted(padded, most, side="right"))
        if rows < MIN_ROWS:
            if len(ahead) < MIN_ROWS:
                break
            raise UserError(
                f"{most:,} padded tokens do not hold {MIN_ROWS} sentences of {ahead[0]}",
                hint="choose larger micro-batches or a smaller length limit",
            )
        starts.append(starts[-1] + (rows - rows % ALIGNED if rows >= MANY_ROWS else rows))
    return np.array(starts)

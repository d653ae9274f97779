"""Which rows a worker trains on and which it validates: disjoint, global, fixed by the seed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from mlbench.config.errors import UserError
from mlbench.training.worker import Worker


@dataclass(frozen=True)
class BatchIterator:
    """One epoch of steps over shuffled rows, one micro-batch a step.

    - rows: int64 [steps, batch], this rank's rows, or a list of what `fetch` takes.
    - fetch(rows): the batch of one row of `rows`, a vectorised gather. It is valid until the next is fetched.
    """

    rows: torch.Tensor | list[Any]
    fetch: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[list[Any]]:
        return ([self.fetch(rows)] for rows in self.rows)


def shuffled_rows(count: int, *, batch: int, epoch: int, worker: Worker) -> torch.Tensor:
    """Return this rank's rows of one epoch as int64 [steps, batch].

    All `count` rows are permuted again each epoch, the same way on every rank, and cut into global batches of
    batch * world_size. A rank takes its part of each. So k workers with batch b see what one worker with
    batch k*b sees. The rest that fills no global batch waits for another epoch's permutation. Raises
    UserError if not even one global batch can be filled.
    """
    width = batch * worker.world_size
    if count < width:
        raise UserError(
            f"{worker.world_size} workers x batch {batch} need {width} rows, there are {count}",
            hint="use fewer workers",
        )
    order = torch.randperm(count, generator=worker.generator(epoch), device=worker.device)
    return order[: count - count % width].view(-1, worker.world_size, batch)[:, worker.rank]


def shard(count: int, worker: Worker) -> range:
    """Return this rank's contiguous share of `count` rows: every row once, sizes differ by at most one."""
    begin = count * worker.rank // worker.world_size
    return range(begin, count * (worker.rank + 1) // worker.world_size)

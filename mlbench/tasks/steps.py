"""One epoch's steps, from a function that makes them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EpochSteps:
    """One epoch's steps of this rank, each the micro-batches that it accumulates.

    - count: how many there are. make(): an iterator over all of them.
    """

    count: int
    make: Callable[[], Iterator[list[Any]]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[list[Any]]:
        return self.make()

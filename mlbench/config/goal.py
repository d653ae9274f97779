"""When a run may stop: a metric, a target and a direction."""

from dataclasses import dataclass
from typing import Literal

Direction = Literal["max", "min"]


@dataclass(frozen=True)
class Goal:
    """A validation metric and the value that ends the run, e.g. top-1 accuracy >= 80 %."""

    metric: str
    target: float
    direction: Direction

    def reached(self, value: float) -> bool:
        """Return whether `value` meets the target. NaN never does."""
        return value >= self.target if self.direction == "max" else value <= self.target

    @property
    def bound(self) -> str:
        """The target with all its digits and the direction, e.g. ">= 80"."""
        short = f"{self.target:g}"
        target = short if float(short) == self.target else repr(self.target)
        return f"{'>=' if self.direction == 'max' else '<='} {target}"

    def __str__(self) -> str:
        return f"{self.metric} {self.bound}"


def better(value: float, best: float | None, direction: Direction) -> bool:
    """Return whether `value` improves on `best`, which is None before the first validation."""
    return best is None or (value > best if direction == "max" else value < best)

"""Separates the warm-up of a run from its steady state: docs/statistics.md, "Warm-up"."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import quantiles

from mlbench.script.steps import Step

SLOW = 1.5  # times the 9th decile of the second half, from which on a step is slow
COMPILING = 0.1  # of a step, from which on what it compiled makes it one of the warm-up
MOST = 20  # steps that a warm-up may have beside those that compile, or a tenth of the steps if that is more
LEAST = 5  # steps that follow it
KEPT = 1000  # steps that may be found to be warm-up, and as many that compile
STEADY = 10_000  # steps at the end, at most, that a decile is taken of


@dataclass
class WarmUp:
    """The durations of a run's steps, and all of those steps that may be its warm-up.

    - seconds: of each step, on its slowest rank.
    """

    seconds: array = field(default_factory=lambda: array("d"))
    _kept: dict[int, Sequence[Step]] = field(default_factory=dict)  # of all ranks, by number

    def add(self, steps: Iterable[Sequence[Step]]) -> None:
        """Take in the next steps, each of all ranks."""
        for ranks in steps:
            number = len(self.seconds)
            self.seconds.append(max(step.end - step.begin - step.validation for step in ranks))
            if number < KEPT or len(self._kept) < 2 * KEPT and any(map(apart, ranks)):
                self._kept[number] = ranks

    def steps(self) -> tuple[list[Sequence[Step]], bool]:
        """Return the steps of the warm-up, or without a steady state those that were observed, and which."""
        first = prefix(self.seconds)
        numbers = [
            number for number, ranks in self._kept.items() if number < (first or 0) or any(map(apart, ranks))
        ]
        if first is None or len(self.seconds) - len(numbers) < LEAST:
            observed = (ranks for ranks in self._kept.values() if any(step.observed for step in ranks))
            return list(observed), False
        return [self._kept[number] for number in numbers], True


def apart(step: Step) -> bool:
    """Return whether a step was observed for its FLOP, or what it compiled is a good part of it."""
    return step.observed or step.compiled > COMPILING * (step.end - step.begin)


def prefix(seconds: Sequence[float]) -> int | None:
    """Return how many steps the warm-up at the begin has; None where what follows is not steady.

    The end is the point up to which slow steps outnumber the others by most.
    """
    half = seconds[max(len(seconds) // 2, len(seconds) - STEADY) :]
    slow = SLOW * (quantiles(half, n=10)[-1] if len(half) > 1 else half[0] if half else 0.0)
    lead = list(accumulate(1 if each > slow else -1 for each in seconds[: 2 * KEPT]))
    most = max(lead, default=0)
    count = len(lead) - lead[::-1].index(most) if most > 0 else 0
    fits = count <= min(max(MOST, len(seconds) / 10), KEPT) and len(seconds) - count >= LEAST
    return count if fits else None

"""The phases of a batch, and what was measured between two validations on one rank."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

PHASES = ("data_wait", "forward", "loss", "backward", "communication", "optimizer", "metrics")
BIN = 1.01  # a bin of the durations of batches ends 1 % above its begin, so a percentile is right to 0.5 %
SHORTEST_S = 1e-9  # s; what a clock shows as nothing counts as this
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass
class PhaseTimes:
    """What was measured between two validations, on one rank; seconds.

    - step_s: how many steps, data_wait included, lasted from BIN**n to BIN**(n + 1) s, by n.
    """

    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    overlapped_communication: float = 0.0
    outside: dict[str, float] = field(default_factory=dict)  # loading, validation, report
    steps: int = 0
    samples: int = 0
    step_s: dict[int, int] = field(default_factory=dict)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "PhaseTimes":
        """Return what `vars` gave, also after a way through JSON, whose names are all text."""
        return cls(**{**values, "step_s": {int(n): count for n, count in values["step_s"].items()}})


def duration_bin(seconds: float) -> int:
    """Return the n of the bin of `PhaseTimes.step_s` that a duration falls into."""
    return math.floor(math.log(max(seconds, SHORTEST_S)) / math.log(BIN))


def percentiles(histograms: Iterable[Mapping[int, int]]) -> dict[str, float]:
    """Return PERCENTILES of all durations (s) in several `step_s` together; {} where there is none.

    Each is the middle of its bin, so within 0.5 % of the duration at that place of the sorted list.
    """
    counts: Counter[int] = Counter()
    for histogram in histograms:
        counts.update(histogram)
    bins = sorted(counts)
    ends = list(accumulate(counts[n] for n in bins))
    return {
        name: BIN ** (bins[bisect_right(ends, int(part * ends[-1]))] + 0.5)
        for name, part in PERCENTILES.items()
        if bins
    }

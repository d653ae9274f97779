"""Define the phases of a step, and the measurements between two validations on one rank."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

PHASES = ("data_wait", "forward", "loss", "backward", "wait", "transfer", "optimizer", "metrics")
TRAIN_STEP = "train_step"  # forward to optimizer with its communication, if one program does it all
UNDIVIDED = ("data_wait", TRAIN_STEP, "metrics")  # the phases of such a step, in place of PHASES
EXPOSED = ("wait", "transfer")  # communication that nothing hides
BIN = 1.01  # a bin of the durations of batches ends 1 % above its begin, so a percentile is right to 0.5 %
LATE = 0.1  # of a step, from which on a rank that comes last is late in it
SHORTEST_S = 1e-9  # s, in place of a duration that the clock shows as nothing
BLOCKS = 10  # stretches of steps between two validations, at most, of which each has a median lateness
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass
class LatenessBlock:
    """A stretch of stamped steps on one rank: how late it launched its last bucket of gradients.

    - last: in how many of the `steps` no rank was later.
    - median_s: seconds after the mean of the other ranks' launches, negative if before.
    """

    steps: int
    last: int
    median_s: float


@dataclass
class LateSteps:
    """The steps in which a rank came last, late by LATE of the step or more, in s.

    - seconds: how late after the mean of the other ranks, in all.
    - parts: how much longer each part was than the mean of the others'.
    """

    steps: int = 0
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)


@dataclass
class PhaseTimes:
    """The measurements between two validations on one rank, in seconds.

    - phases: of all steps, adding up to `seconds`. They are scaled from the stamped steps if not all were
      stamped. wait: for the slowest rank's gradients. transfer: from there until all are reduced. A compiled
      step has UNDIVIDED alone.
    - overlapped_communication: what buckets took while backward went on, in no phase.
    - outside: loading, validation, report. With `seconds` it is all the time that passed.
    - stamp_every: one of so many steps was stamped, `stamped_steps` in all.
    - step_s: how many stamped steps, data_wait included, lasted from BIN**n to BIN**(n + 1) s, by n.
    - lateness: of this rank, empty without communication.
    - bytes_sent: by this rank, to combine gradients or models. Counted at the collectives, without headers.
      None in older logs.
    - elapsed: from the first access to training data to the interval's end, on this rank's clock. None in
      older logs.
    - clock_error_s: bound of the error with which this rank's clock was compared with rank 0's.
    - late: the steps in which this rank kept the others waiting, or None if not looked for.
    - within: parts of the phases and of what is outside: compilation, saving, observation (of a step's FLOP).
    - tokens: that models of a script were given, or 0.
    - cpu_wait_s: for how long its main thread could run and had no CPU. None if unknown, as in older logs.
    - peak_memory_bytes: of its GPU since the run's begin, or None on CPUs.
    - warm_up: the part of all since the run's begin that was warm-up, or None.
    - unsteady: whether all of it may be warm-up.
    """

    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    overlapped_communication: float = 0.0
    outside: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    samples: int = 0
    tokens: int = 0
    stamp_every: int = 1
    stamped_steps: int = 0
    step_s: dict[int, int] = field(default_factory=dict)
    lateness: list[LatenessBlock] = field(default_factory=list)
    bytes_sent: int | None = None
    elapsed: float | None = None
    clock_error_s: float = 0.0
    late: LateSteps | None = None
    within: dict[str, float] = field(default_factory=dict)
    cpu_wait_s: float | None = None
    peak_memory_bytes: int | None = None
    warm_up: "PhaseTimes | None" = None
    unsteady: bool = False

    def plain(self) -> dict[str, Any]:
        """Return plain values that travel as JSON."""
        return asdict(self)

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "PhaseTimes":
        """Return the value that `plain` gave, also after a way through JSON, whose names are all text."""
        lateness = [LatenessBlock(**block) for block in values.get("lateness", [])]
        step_s = {int(n): count for n, count in values.get("step_s", {}).items()}
        warm_up = values.get("warm_up")
        late = values.get("late")
        parts = {"late": late and LateSteps(**late), "warm_up": warm_up and cls.from_plain(warm_up)}
        return cls(**{**values, "step_s": step_s, "lateness": lateness, **parts})


def taken_away(warm_up: PhaseTimes) -> PhaseTimes:
    """Return the times that, added to those of a rank, move its warm-up out of the phases."""
    late = warm_up.late or LateSteps()
    return PhaseTimes(
        phases={name: -seconds for name, seconds in warm_up.phases.items()},
        overlapped_communication=-warm_up.overlapped_communication,
        outside={"warm_up": warm_up.seconds},
        samples=-warm_up.samples,
        tokens=-warm_up.tokens,
        step_s={n: -count for n, count in warm_up.step_s.items()},
        within={name: -seconds for name, seconds in warm_up.within.items()},
        late=LateSteps(-late.steps, -late.seconds, {name: -s for name, s in late.parts.items()}),
        unsteady=warm_up.unsteady,
    )


def phase_names(times: Iterable[PhaseTimes]) -> tuple[str, ...]:
    """Return the phases that were measured separately."""
    return UNDIVIDED if any(TRAIN_STEP in each.phases for each in times) else PHASES


def exposed(phases: Mapping[str, float]) -> float:
    """Return the communication that nothing hides, which mlbench 0.1 did not split."""
    return phases.get("communication", 0.0) + sum(phases.get(name, 0.0) for name in EXPOSED)


def lateness_blocks(lateness: Any, last: Any) -> list[LatenessBlock]:
    """Return the blocks of a rank's steps, of arrays: how late it was, s, and whether it was last."""
    count = min(BLOCKS, len(lateness))
    size, longer = divmod(len(lateness), count or 1)
    edges = [size * number + min(number, longer) for number in range(count + 1)]
    return [
        LatenessBlock(end - begin, int(sum(last[begin:end])), float(median(lateness[begin:end])))
        for begin, end in pairwise(edges)
    ]


def merged(blocks: Sequence[LatenessBlock], *, most: int = 50) -> list[LatenessBlock]:
    """Return the blocks, neighbours joined until at most `most` are left. A long run has thousands."""
    size = math.ceil(len(blocks) / most) or 1
    groups = [blocks[begin : begin + size] for begin in range(0, len(blocks), size)]
    return [
        LatenessBlock(
            sum(block.steps for block in group),
            sum(block.last for block in group),
            median(block.median_s for block in group),
        )
        for group in groups
    ]


def duration_bin(seconds: float) -> int:
    """Return the n of the bin of `PhaseTimes.step_s` that a duration falls into."""
    return math.floor(math.log(max(seconds, SHORTEST_S)) / math.log(BIN))


def percentiles(histograms: Iterable[Mapping[int, int]]) -> dict[str, float]:
    """Return PERCENTILES of all durations (s) in several `step_s` together, or {} if there is none.

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

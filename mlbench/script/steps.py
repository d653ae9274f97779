"""From the stamps of a foreign training loop to its steps."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mlbench.probe.stamps import (
    ASIDE,
    BACKWARD,
    BACKWARD_END,
    COMPARED,
    COMPILED,
    DATA,
    DATA_END,
    FORWARD,
    FORWARD_END,
    INFERENCE,
    INFERENCE_END,
    LAUNCH,
    MET,
    OBSERVED,
    OPTIMIZER,
    REDUCED,
    REPLAYED,
    SAVED,
    START,
    STEP,
    Stamp,
)
from mlbench.training.stamps import busy


class Meeting(NamedTuple):
    """One collective on one rank: its launch, and begin and end of the wait for it, s; `which` as of MET."""

    launched: float
    begin: float
    end: float
    which: int


class Step(NamedTuple):
    """One optimizer step of one rank; s, moments on that rank's clock.

    Its durations add up from `begin`, where the step before ended, to `end`.

    - gap: from `begin` to the first forward pass; in the parts that are not of a forward or backward pass.
    - metrics: all that the script does beside the other parts; `other` on the card.
    - transfer: from the launch of the last bucket of gradients until all are reduced, and waits for other
      collectives. meetings: these, by their launches.
    - compiled, saved: what torch.compile and torch.save took, within the other parts.
    - rows: the first dimension of what a model was given, of several the greatest; summed over its calls.
      tokens: likewise, of matrices of integers. observed: whether it was slowed, so that no rate has it.
    """

    begin: float
    end: float
    gap: float
    validation: float
    data_wait: float
    forward: float
    loss: float
    backward: float
    transfer: float
    optimizer: float
    metrics: float
    overlapped: float
    meetings: tuple[Meeting, ...]
    rows: int
    compiled: float = 0.0
    saved: float = 0.0
    tokens: int = 0
    observed: bool = False


VALIDATION_END, OPTIMIZER_END = -1, -2  # stamps that follow from others
DRAWN = (DATA, START)
PASSES = 128  # backward passes without a step of an optimizer, after which each is a step
FRESH_PASSES = 64  # likewise, if each began without gradients, unlike those of an accumulation
# The part that the time before a stamp belongs to.
PART = {
    START: "metrics",
    DATA: "metrics",
    DATA_END: "data_wait",
    FORWARD: "metrics",
    FORWARD_END: "forward",
    INFERENCE_END: "forward",
    BACKWARD: "loss",
    BACKWARD_END: "backward",
    OPTIMIZER_END: "optimizer",
    STEP: "optimizer",
    REPLAYED: "optimizer",
}


class Splitter:
    """Turns one rank's stamps into its steps.

    A step ends with that of an optimizer. If none is ever seen, it ends with a backward pass that is followed
    by a forward pass, a DataLoader or, without a model, another backward pass. Until the first step of an
    optimizer, or many backward passes, no step is returned, as these may be micro-batches of one.

    A forward pass that does not train is a part of its step or of a validation. It is a validation if a
    DataLoader is asked between it and the forward pass that trains, or if none was asked and its model trains
    in the step, unlike a teacher.

    - passes: whether steps are backward passes; None: not known yet. by_passes: whether any was one.
    """

    def __init__(self) -> None:
        self.passes: bool | None = None
        self.by_passes = False
        self._part = _Part()
        self._ended: list[_Part] = []  # by backward passes, while it is not known whether these are steps
        self._modelled = False  # whether a forward pass was seen
        self._fresh = True  # whether each backward pass began without gradients

    @property
    def doing(self) -> int | None:
        """The kind of the last stamp that is in no step yet; None without one."""
        return self._part.stamps[-1][0] if self._part.stamps else None

    def feed(self, stamps: Iterable[Stamp]) -> list[Step]:
        """Return the steps that end with these stamps."""
        return [step for stamp in stamps for step in self._take(stamp)]

    def finish(self) -> list[Step]:
        """Return the steps of which nothing but the end of the script has shown that they are some."""
        steps = [] if self.passes is False else self._end_pass()
        return steps + (self._decide(passes=True) if self._ended else [])

    def _take(self, stamp: Stamp) -> list[Step]:
        kind, steps = stamp[0], list[Step]()
        if self._part.passed and self.passes is not False:
            follows = kind in (*DRAWN, FORWARD, INFERENCE) or kind == BACKWARD and not self._modelled
            steps = self._end_pass() if follows else []
        if kind in (STEP, REPLAYED):
            if self.passes is not False:
                steps += self._decide(passes=False)
            return steps + self._end_step(stamp)
        self._modelled |= kind == FORWARD
        if kind == BACKWARD:
            self._fresh &= bool(stamp[2])
        self._part.add(stamp)
        return steps

    def _end_step(self, stamp: Stamp) -> list[Step]:
        part, kind = self._part, stamp[0]
        if kind == STEP and self._modelled and not part.forward:
            part.stamps.append((OPTIMIZER_END, stamp[1]))  # another of the same step: a part of the next
            return []
        part.add(stamp)
        self._part = _Part(stamp[1])
        return [part.step()]

    def _end_pass(self) -> list[Step]:
        """End a step with its last backward pass, if it has one."""
        part = self._part
        if not part.passed:
            return []
        *stamps, end = part.stamps[: part.passed]
        late, self._part = part.stamps[part.passed :], _Part(end[1])
        part.stamps = [*stamps, *(stamp for stamp in late if stamp[0] != MET), end]  # of its buckets
        self._part.stamps = [stamp for stamp in late if stamp[0] == MET]
        if self.passes:
            return [part.step()]
        self._ended.append(part)
        many = FRESH_PASSES if self._fresh else PASSES
        return self._decide(passes=True) if len(self._ended) >= many else []

    def _decide(self, *, passes: bool) -> list[Step]:
        ended, self._ended, self.passes = self._ended, [], passes
        self.by_passes |= passes
        if passes:
            return [part.step() for part in ended]
        for part in reversed(ended):  # micro-batches of one step
            self._part = part.joined(self._part)
        return []


class _Part:
    """The stamps of a step, as far as they are known."""

    def __init__(self, begin: float | None = None) -> None:
        self.begin = begin
        self.stamps: list[Stamp] = []
        self.rows: dict[int, int] = {}  # of each model
        self.tokens: dict[int, int] = {}
        self.observed = False
        self.forward = False  # whether a forward pass that trains has begun
        self.trained: set[int] = set()  # models of such passes that have ended
        self.spans = {COMPILED: 0.0, SAVED: 0.0}  # s
        self.passed = 0  # how many stamps there were at the end of the last backward pass
        # How many there were after the last forward pass that does not train, and its model.
        self._inference: tuple[int, int] | None = None

    def add(self, stamp: Stamp) -> None:
        """Take in one more stamp."""
        kind, at, *others = stamp
        if kind in self.spans:
            self.spans[kind] += others[0]
            return
        if kind == OBSERVED:
            self.observed = True
            return
        stamps = self.stamps
        if self.begin is None:
            self.begin = at
        if kind in DRAWN and self._inference and not self.forward:
            self._settle()
        elif kind == INFERENCE:
            if stamps and stamps[-1][0] == INFERENCE_END:
                del stamps[-1]  # such passes in a row are one
                return
            kind = FORWARD
        elif kind == FORWARD:
            self.forward = True
        stamps.append(stamp if kind in (REDUCED, MET) else (kind, at))
        if kind == FORWARD_END:
            model = int(others[0])
            self.trained.add(model)
            self.rows[model] = self.rows.get(model, 0) + int(others[1])
            self.tokens[model] = self.tokens.get(model, 0) + int(others[2])
        elif kind == INFERENCE_END and not self.forward:
            self._inference = len(stamps), int(others[0])
        elif kind == BACKWARD_END:
            self.passed = len(stamps)
        elif kind == REPLAYED:
            self.rows = {0: int(others[0])}

    def joined(self, following: "_Part") -> "_Part":
        """Return this part and the one that follows as one."""
        self.stamps += following.stamps
        self.trained |= following.trained
        self.forward |= following.forward
        self.observed |= following.observed
        for kind, seconds in following.spans.items():
            self.spans[kind] += seconds
        for mine, theirs in ((self.rows, following.rows), (self.tokens, following.tokens)):
            for model, count in theirs.items():
                mine[model] = mine.get(model, 0) + count
        return self

    def step(self) -> Step:
        """Return the step that these stamps are."""
        if self._inference is not None:
            count, model = self._inference
            if model in self.trained and not any(stamp[0] in DRAWN for stamp in self.stamps[:count]):
                self._settle()
        assert self.begin is not None
        step = assemble(self.stamps, begin=self.begin, rows=max(self.rows.values(), default=0))
        spans = {"compiled": self.spans[COMPILED], "saved": self.spans[SAVED]}
        return step._replace(**spans, tokens=max(self.tokens.values(), default=0), observed=self.observed)

    def _settle(self) -> None:
        """Make a validation of what lies before the forward pass that trains, up to the last one before."""
        assert self._inference is not None
        (count, _), self._inference = self._inference, None
        self.stamps[:count] = [(VALIDATION_END, self.stamps[count - 1][1])]


def assemble(stamps: Sequence[Stamp], *, begin: float, rows: int) -> Step:
    """Return the step of these stamps; LAUNCH, REDUCED and MET lie among them.

    The last launch before another stamp ends a backward pass. VALIDATION_END makes all time since the begin a
    validation, and so does the START of a DataLoader's iterator between it and the first forward pass.
    """
    parts = dict.fromkeys(("validation", *PART.values(), "transfer"), 0.0)
    previous, gap, launch, hidden, blocked = begin, None, None, 0.0, 0.0
    buckets: list[tuple[float, float]] = []
    meetings: list[Meeting] = []
    backward_ended = stepping = False
    for number, (kind, at, *others) in enumerate(stamps, 1):
        if kind == LAUNCH:
            launch = max(at, previous)
            continue
        if kind == REDUCED:
            buckets.append((at, others[0]))
            continue
        if kind == MET:
            meetings.append(meeting := Meeting(at, others[0], others[1], int(others[2])))
            if not meeting.which & ASIDE:
                blocked += max(meeting.end - max(meeting.begin, previous), 0.0)
            continue
        if kind == BACKWARD_END and launch is not None and number < len(stamps):
            continue  # the launches of its buckets say when its gradients were there
        if launch is not None:
            ended = max([launch, *(min(end, at) for _, end in buckets)])
            parts["backward"] += launch - previous
            parts["transfer"] += ended - launch
            hidden += busy(sorted(buckets), until=launch)
            meetings += [Meeting(launch, launch, ended, COMPARED)] if buckets else []
            previous, launch, buckets, backward_ended = ended, None, [], True
        at = max(at, previous)  # those of two streams of a GPU may be some microseconds out of order
        if kind == VALIDATION_END or kind == START and parts["validation"] and gap is None:
            parts = dict.fromkeys(parts, 0.0) | {"validation": at - begin}
            meetings = []
        else:
            if kind == FORWARD and gap is None:
                part, gap = "metrics", at - begin
            elif kind == OPTIMIZER:
                part = "optimizer" if backward_ended else "metrics"
            elif kind in (FORWARD, BACKWARD) and stepping and backward_ended:
                part = "optimizer"  # between two calls of its closure
            elif kind == BACKWARD and gap is None:
                part = "metrics"  # no forward pass was seen
            else:
                part = PART[kind]
                backward_ended = kind == BACKWARD_END or (backward_ended and kind != FORWARD_END)
            blocked = min(blocked, at - previous)
            parts[part] += at - previous - blocked
            parts["transfer"] += blocked
        stepping = kind == OPTIMIZER or (stepping and kind != OPTIMIZER_END)
        previous, blocked = at, 0.0
    return Step(
        begin=begin,
        end=previous,
        gap=gap or 0.0,
        overlapped=hidden,
        meetings=tuple(sorted(meetings)),
        rows=rows,
        tokens=0,
        observed=False,
        **parts,
    )

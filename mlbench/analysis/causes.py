"""Find the cause that dominates a script's time, if there is one, and what to try.

docs/your-own-script.md explains the causes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlbench.analysis import stragglers
from mlbench.record.format import duration, percent
from mlbench.record.record import RankTimes, Record

SHARES = {  # of the time, from which on a part dominates if no rank is late
    "data_wait": 0.2,
    "saving": 0.15,
    "validation": 0.25,
    "transfer": 0.3,
    "metrics": 0.3,
}
LATE_SHARE = 0.15  # of the time, from which on late steps count that are not always one rank's
LATE_STEPS = 3  # of these, at least
ONE = 0.8  # of all lateness, from which on it is one rank's
MOST = 0.5  # of it, from which on one part of the step has it
WAITED = 0.3  # of it, likewise waiting for a CPU
ROWS = 1.1  # times the others' rows, which are more work
NAMES = {"metrics": "other work", "data_wait": "wait for data"}  # "other" is a bar of the card
TRY = {  # a line of a card of 79 columns each
    "data_wait": "more DataLoader workers, or faster storage",
    "forward": "compare the rank's device: clock, temperature, programs",
    "loss": "look between forward and backward(): .item(), print",
    "backward": "compare the rank's device: clock, temperature, programs",
    "optimizer": "look from the end of backward() to optimizer.step()",
    "metrics": "look around the model's calls: transforms, logging",
    "validation": "validate or sample less often, or on all ranks together",
    "saving": "save less often, or in the background (async_save)",
    "transfer": "larger batches, gradients in bf16, a faster network",
    "cpu": "separate CPUs, or fewer threads (OMP_NUM_THREADS)",
    "rows": "give each rank batches of equal length",
}


@dataclass(frozen=True)
class Cause:
    """The dominant cause in a run.

    - kind: a key of TRY, or "late" without one.
    - ranks: which keep the others waiting. Empty if all are alike.
    - pattern: always, bursts or turns, or "" without late ranks.
    - sentence, next_step: for people.
    """

    kind: str
    ranks: tuple[int, ...]
    pattern: str
    sentence: str

    @property
    def next_step(self) -> str | None:
        """What to try."""
        return f"Try: {TRY[self.kind]}." if self.kind in TRY else None


def of_run(record: Record) -> Cause | None:
    """Return the dominant cause in a script's run, or None if there is none."""
    if not record.ranks or not record.validations:
        return None
    return _late(record) or (None if record.unsteady else _dominant(record))


def _late(record: Record) -> Cause | None:
    ranks, straggler = record.ranks, stragglers.of_run(record)
    if len(ranks) < 2:
        return None
    steps, total = record.timed_steps, math.fsum(rank.late_s for rank in ranks)
    who = straggler.rank if straggler else max(range(len(ranks)), key=lambda rank: ranks[rank].late_s)
    in_turns = straggler is None and ranks[who].late_s < ONE * total
    if straggler is None:
        seconds = math.fsum(stats.mean for stats in record.phases.values())
        count = sum(rank.late_steps for rank in ranks)
        # What waiting for CPUs explains is the machine's and no rank's.
        waited = [each.cpu_wait_s or 0.0 for number, each in enumerate(ranks) if in_turns or number != who]
        explained = math.fsum(waited) / (1 if in_turns else len(waited))
        if total - explained < max(LATE_SHARE * seconds, steps * record.clock_error_s) or count < LATE_STEPS:
            return None
    if in_turns:
        parts = {
            name: math.fsum(rank.late_parts.get(name, 0.0) for rank in ranks) for name in ranks[0].late_parts
        }
        taking = tuple(rank for rank, each in enumerate(ranks) if each.late_steps)
        late_steps = sum(rank.late_steps for rank in ranks)
        subject = "the ranks keep each other waiting in turns: one of them was late in "
        share, each = percent(late_steps / steps), duration(total / late_steps)
        before = "the other" if len(ranks) == 2 else "the mean of the others"
        subject += f"{share} of the steps, {each} after {before}"
        kind, why = _part(parts, total, late_steps, "the late one's")
        return Cause(kind, taking, "turns", subject + why) if why else None
    rank = ranks[who]
    if straggler is None:
        waiting, before = stragglers.others(who, len(ranks))
        subject = f"rank {who} keeps {waiting} waiting now and then: in {rank.late_steps} of {steps} steps, "
        subject += f"{duration(rank.late_s / rank.late_steps)} after {before}"
    else:
        subject = stragglers.sentence(straggler)
    if not rank.late_steps:
        return Cause("late", (who,), "always", subject)
    kind, why = _of_rank(ranks, who)
    if straggler is None and not why:
        return None
    pattern = "bursts" if straggler is None or rank.late_steps < steps / 2 else "always"
    return Cause(kind, (who,), pattern, subject + why)


def _of_rank(ranks: Sequence[RankTimes], who: int) -> tuple[str, str]:
    """Return why a rank is late, as a key of TRY and as the end of a sentence."""
    rank, others = ranks[who], [each for number, each in enumerate(ranks) if number != who]
    kind, why = _part(rank.late_parts, rank.late_s, rank.late_steps, "its")
    waited = _beyond(rank.cpu_wait_s, [each.cpu_wait_s for each in others])
    saved = _beyond(rank.within.get("saving", 0.0), [each.within.get("saving", 0.0) for each in others])
    rows = sum(each.samples for each in others) / len(others)
    if waited > WAITED * rank.late_s:
        return "cpu", f"{why}; it waited {duration(waited)} longer for a CPU"
    if kind in ("metrics", "validation") and saved > MOST * rank.late_s:
        return "saving", f"{why}; torch.save took {duration(saved)} of it"
    if kind in ("forward", "backward") and rows and rank.samples > ROWS * rows:
        return "rows", f"{why}; it has {rank.samples / rows:.2g} times the rows of the others"
    return kind, why


def _part(parts: dict[str, float], late_s: float, steps: int, whose: str) -> tuple[str, str]:
    """Return the part of a step that has most of a lateness, and that as the end of a sentence."""
    name = max(parts, key=lambda each: parts[each], default="")
    if not name or parts[name] < MOST * late_s:
        return "late", ""
    return name, f"; {whose} {NAMES.get(name, name)} is {duration(parts[name] / steps)} longer"


def _beyond(value: float | None, others: Sequence[float | None]) -> float:
    """Return by how much a rank's value exceeds the mean of the others', 0 if one is unknown."""
    known = [each for each in others if each is not None]
    return value - math.fsum(known) / len(known) if value is not None and len(known) == len(others) else 0.0


def _dominant(record: Record) -> Cause | None:
    elapsed = record.validations[-1].elapsed - (record.warm_up.seconds if record.warm_up else 0.0)
    seconds = {
        name: record.phases[name].mean
        for name in ("data_wait", "transfer", "metrics")
        if name in record.phases
    }
    saving = max(rank.within.get("saving", 0.0) for rank in record.ranks)
    validation = record.outside["validation"].max if "validation" in record.outside else 0.0
    seconds |= {"saving": saving, "validation": max(validation - saving, 0.0)}
    seconds["metrics"] = max(seconds.get("metrics", 0.0) - max(saving - validation, 0.0), 0.0)
    if record.disturbances:  # gloo's threads wait for CPUs that others use
        seconds.pop("transfer", None)
    kind = max(SHARES, key=lambda name: seconds.get(name, 0.0) / SHARES[name])
    if elapsed <= 0 or seconds.get(kind, 0.0) < SHARES[kind] * elapsed:
        return None
    what = {
        "data_wait": "waiting for data",
        "saving": "torch.save",
        "validation": "what lies outside the steps, such as validation or rollouts,",
        "transfer": "averaging gradients",
        "metrics": "work outside data, model and optimizer",
    }[kind]
    share = (
        f"{percent(seconds[kind] / elapsed)} of the time ({duration(seconds[kind])} of {duration(elapsed)})"
    )
    return Cause(kind, (), "", f"{what} takes {share}")

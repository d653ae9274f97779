"""From the steps of all ranks to what a run of the suite's own loop reports between two validations."""

from collections.abc import Sequence

import numpy as np

from mlbench.probe.stamps import ASIDE, COMPARED, PARTLY
from mlbench.record.phases import LATE, LateSteps, PhaseTimes, duration_bin, lateness_blocks
from mlbench.script.steps import Step
from mlbench.script.warm_up import WarmUp

DIRECT = ("forward", "loss", "backward", "transfer", "optimizer")
BEFORE = ("validation", "metrics", "data_wait", "forward", "loss", "backward")  # of a step, its gradients
ALIKE = 0.1  # of a step, by which the clocks of two GPUs may be wrong


def phase_times(
    ranks: Sequence[Sequence[Step]],
    *,
    since: Sequence[float],
    until: float | None,
    count: int,
    start: float,
    clock_error_s: float,
    warm_up: WarmUp | None = None,
) -> tuple[list[PhaseTimes], list[float]]:
    """Return each rank's times in an interval, and when it ended for that rank; s on the common clock.

    - ranks: each rank's steps; count: how many of them are in the interval.
    - since: where it began for each rank. until: where it ends, after a validation; None: with each
      rank's last step. start: of the run. warm_up: of the run until now; None: this is its begin.
    """
    times, ends, compared = [], [], []
    for all_steps, begin in zip(ranks, since, strict=True):
        steps = [*map(_after, all_steps[:count], [begin, *(step.end for step in all_steps)])]
        last = end = max(steps[-1].end if steps else begin, begin)
        if until is not None:  # the rank may have gone on before rank 0 printed
            following = all_steps[count:]
            end = max(last, min(until, following[0].begin + following[0].gap) if following else until)
        times.append(_of_rank(steps, begin=begin, elapsed=end - start, clock_error_s=clock_error_s))
        if end > last:
            outside = times[-1].outside
            outside["validation"] = outside.get("validation", 0.0) + end - last
        ends.append(end)
        compared.append(steps)
    _split(compared, times)
    warm_up = warm_up or WarmUp()
    warm_up.add(zip(*compared, strict=True))
    warm, steady = warm_up.steps()
    for rank, each in enumerate(_warm_times(warm, clock_error_s)):
        times[rank].warm_up, each.unsteady = each, not steady
    for each in times:
        each.unsteady = not steady
    return times, ends


def _warm_times(warm: Sequence[Sequence[Step]], clock_error_s: float) -> list[PhaseTimes]:
    """Return what each rank did in the steps of the warm-up."""
    ranks = [list(steps) for steps in zip(*warm, strict=True)]
    times = [
        _of_rank(steps, begin=steps[0].begin, elapsed=0.0, clock_error_s=clock_error_s) for steps in ranks
    ]
    if times:
        _split(ranks, times)
    return times


def _after(step: Step, at: float) -> Step:
    """Return what of a step lies after a moment; what lies before was counted with the interval before."""
    rest, parts = max(at - step.begin, 0.0), {}
    for part in ("validation", "metrics", "data_wait", *DIRECT):
        seconds = getattr(step, part)
        parts[part] = seconds - min(seconds, rest)
        rest -= min(seconds, rest)
    return step._replace(begin=max(at, step.begin), **parts)


def _of_rank(steps: Sequence[Step], *, begin: float, elapsed: float, clock_error_s: float) -> PhaseTimes:
    count = len(steps)
    times = PhaseTimes(
        steps=count, stamped_steps=count, elapsed=elapsed, clock_error_s=clock_error_s, late=LateSteps()
    )
    validation = 0.0
    # Before its first step, where another rank's has begun: the run's clock does not stand still for it.
    times.seconds = times.phases["metrics"] = steps[0].begin - begin if steps else 0.0
    for step in steps:
        validation += step.validation
        for phase in ("metrics", "data_wait", *DIRECT):
            times.phases[phase] += getattr(step, phase)
        times.overlapped_communication += step.overlapped
        times.samples += step.rows
        times.tokens += step.tokens
        seconds = step.end - step.begin - step.validation
        times.seconds += seconds
        n = duration_bin(seconds)
        times.step_s[n] = times.step_s.get(n, 0) + 1
    spans = {"compilation": sum(step.compiled for step in steps), "saving": sum(step.saved for step in steps)}
    spans["observation"] = sum(step.end - step.begin for step in steps if step.observed)
    times.within = {name: seconds for name, seconds in spans.items() if seconds}
    times.outside = {"validation": validation} if validation else {}
    return times


def _split(ranks: Sequence[Sequence[Step]], times: Sequence[PhaseTimes]) -> None:
    """Move from transfer to wait what each rank waited for the slowest, and note how late each was.

    Only steps in which all ranks came to the same collectives are compared. A rank is as late as the others
    waited longer than it did.
    """
    error_s = 2 * times[0].clock_error_s
    found = {number: _waits(steps, error_s) for number, steps in enumerate(zip(*ranks, strict=True))}
    waits = {number: waited for number, waited in found.items() if waited is not None}
    if len(ranks) == 1 or not waits:
        return
    waited, exposed = np.stack([*waits.values()], axis=2)  # of each rank in each step
    _find_late(ranks, times, [*waits], -waited)  # who waited less came later
    for rank, each in enumerate(times):
        each.phases["wait"] += float(exposed[rank].sum())
        each.phases["transfer"] -= float(exposed[rank].sum())
        others = np.delete(waited, rank, axis=0).mean(axis=0)
        each.lateness = lateness_blocks(others - waited[rank], waited[rank] == waited.min(axis=0))


def _find_late(
    ranks: Sequence[Sequence[Step]], times: Sequence[PhaseTimes], numbers: Sequence[int], arrived: np.ndarray
) -> None:
    """Note in which steps a rank came late, and how much longer its parts were until then.

    numbers: of the steps that were compared. arrived: when each rank came in these [ranks, steps], s.
    """
    lasted = np.array([[steps[number].end - steps[number].begin for number in numbers] for steps in ranks])
    lateness, last = _beyond_others(arrived), arrived.argmax(axis=0)
    longer = {
        part: _beyond_others(np.array([_part(steps, numbers, part) for steps in ranks]))
        for part in (*BEFORE, "optimizer")
    }
    for rank, each in enumerate(times):
        late = (last == rank) & (lateness[rank] > LATE * lasted.min(axis=0))
        parts = {part: float(values[rank][late].sum()) for part, values in longer.items()}
        each.late = LateSteps(int(late.sum()), float(lateness[rank][late].sum()), parts)


def _beyond_others(values: np.ndarray) -> np.ndarray:
    """Return by how much each rank's values [ranks, steps] exceed the mean of the other ranks'."""
    return values - (values.sum(axis=0) - values) / (len(values) - 1)


def _part(steps: Sequence[Step], numbers: Sequence[int], part: str) -> list[float]:
    """Return a part of each of some steps; the optimizer, after the meeting, of the step before."""
    before = 1 if part == "optimizer" else 0
    return [getattr(steps[number - before], part) if number >= before else 0.0 for number in numbers]


def _waits(steps: Sequence[Step], error_s: float) -> np.ndarray | None:
    """Return how long each rank waited for the last one in a step, and how much of that is in its transfer.

    None where the ranks' collectives are not the same. One that ended on a rank before all had launched it is
    none of all ranks: a rank has made a step more, e.g. of a model of its own, or one less (Join). But in one
    in which not all wait for all, such as a broadcast, a rank waits until its own end at most.
    """
    meetings = [[each for each in step.meetings if each.which & COMPARED] for step in steps]
    which = [each.which for each in meetings[0]]
    if not which or any([each.which for each in rank] != which for rank in meetings[1:]):
        return None
    launched, begin, end = np.array(meetings).transpose(2, 0, 1)[:3]
    error_s += ALIKE * min(step.end - step.begin for step in steps)
    last = launched.max(axis=0)
    partly = np.array(which) & PARTLY > 0
    met = partly | (last <= end.min(axis=0) + error_s)
    if not met.any():
        return None
    until = np.where(partly, np.minimum(last, end), last)
    waited = np.where(met, np.maximum(until - begin, 0.0), 0.0)
    exposed = np.minimum(waited, end - begin)[:, ~np.array(which) & ASIDE > 0].sum(axis=1)
    return np.array([waited.sum(axis=1), np.minimum(exposed, [step.transfer for step in steps])])

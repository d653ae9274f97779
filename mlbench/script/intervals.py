"""From the steps of all ranks to what a run of the suite's own loop reports between two validations."""

from collections.abc import Sequence

import numpy as np

from mlbench.record.phases import PhaseTimes, duration_bin, lateness_blocks
from mlbench.script.steps import Step

DIRECT = ("forward", "loss", "backward", "transfer", "optimizer")
ALIKE = 0.1  # of a step, by which the clocks of two GPUs may be wrong


def phase_times(
    ranks: Sequence[Sequence[Step]],
    *,
    since: Sequence[float],
    until: float | None,
    count: int,
    start: float,
    clock_error_s: float,
) -> tuple[list[PhaseTimes], list[float]]:
    """Return each rank's times in an interval, and when it ended for that rank; s on the common clock.

    - ranks: each rank's steps; count: how many of them are in the interval.
    - since: where it began for each rank. until: where it ends, after a validation; None: with each
      rank's last step. start: of the run.
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
    return times, ends


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
    times = PhaseTimes(steps=count, stamped_steps=count, elapsed=elapsed, clock_error_s=clock_error_s)
    validation, reached = 0.0, begin
    for step in steps:
        # Before its first step, where another rank's has begun: the run's clock does not stand still for it.
        times.phases["metrics"] += step.begin - reached
        validation += step.validation
        for phase in ("metrics", "data_wait", *DIRECT):
            times.phases[phase] += getattr(step, phase)
        times.overlapped_communication += step.overlapped
        times.samples += step.rows
        seconds = step.end - step.begin - step.validation
        times.seconds += step.end - reached - step.validation
        n = duration_bin(seconds)
        times.step_s[n] = times.step_s.get(n, 0) + 1
        reached = step.end
    times.outside = {"validation": validation} if validation else {}
    return times


def _split(ranks: Sequence[Sequence[Step]], times: Sequence[PhaseTimes]) -> None:
    """Move from transfer to wait what each rank waited for the slowest, and note how late each was.

    Only steps in which every rank launched its gradients, for one all-reduce, are compared.
    """
    error_s = 2 * times[0].clock_error_s
    compared = [steps for steps in zip(*ranks, strict=True) if _met(steps, error_s)]
    if len(ranks) == 1 or not compared:
        return
    launched = np.array([[step.launched for step in steps] for steps in compared], dtype=np.float64)
    latest = launched.max(axis=1)
    for rank, each in enumerate(times):
        transfer = np.array([steps[rank].transfer for steps in compared])
        waited = float(np.minimum(latest - launched[:, rank], transfer).sum())
        each.phases["wait"] += waited
        each.phases["transfer"] -= waited
        others = np.delete(launched, rank, axis=1).mean(axis=1)
        each.lateness = lateness_blocks(launched[:, rank] - others, launched[:, rank] == latest)


def _met(steps: Sequence[Step], error_s: float) -> bool:
    """Return whether the ranks' steps end with one all-reduce, which ends after all have launched it.

    They do not where a rank has made a step more, e.g. of a model of its own, or one less (Join).
    """
    launches = [(step.launched, step.launched + step.transfer) for step in steps if step.launched is not None]
    error_s += ALIKE * min(step.end - step.begin for step in steps)
    return len(launches) == len(steps) and max(launches)[0] <= min(end for _, end in launches) + error_s

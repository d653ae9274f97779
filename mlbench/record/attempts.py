"""Which run counts for a seed. Studies, plots, comparisons, pages and `mlbench.run` all ask here.

An experiment with one seed is a trial; every run of it is an attempt. A trial counts once, however often it
was run, and no attempt is hidden:

- One attempt that failed makes the trial a failed one: it stays in n with infinite time. Running the seed
  again does not repair it.
- Of several finished attempts the middle one by time counts (missed goals last; of an even number the slower
  of the two in the middle), so that repeating a seed makes a point neither larger nor faster.
- A run with profile=N is no attempt: torch.profiler slowed it.
- A finished attempt whose log contradicts itself is no result either: nothing in it is a measurement.
- An interrupted or preempted attempt is no result. A trial that has no other is not in n; it stands beside
  it. But its time to the goal is more than it had trained (a censored time): where that is not less than the
  median of the point's others, it lies above the median whatever it was, and counts as a missed goal.
"""

import math
from collections.abc import Iterable, Sequence
from operator import or_
from statistics import median
from typing import NamedTuple

from mlbench.record.format import counted
from mlbench.record.record import FINISHED, Record


class History(NamedTuple):
    """What the studies below an output_root know of a point, whatever became of its runs.

    - planned: all of its seeds; drawn: those that a sweep drew; logged: those that have an attempt in a log.
    - deleted: the runs that the studies' logs name and that have no readable record of their own any more.
    - unfinished: those of them that go on, or were killed and are not concluded yet.
    """

    planned: frozenset[int] = frozenset()
    drawn: frozenset[int] = frozenset()
    logged: frozenset[int] = frozenset()
    deleted: frozenset[str] = frozenset()
    unfinished: frozenset[str] = frozenset()

    def __or__(self, other: "History") -> "History":
        """Return what both know."""
        return History._make(map(or_, self, other))


def by_seed(records: Iterable[Record]) -> list[list[Record]]:
    """Return the runs of each experiment and seed, oldest first, by their first; equal run ids count once.

    Results that others published have no seeds: each is a trial of its own.
    """
    groups: dict[tuple[str, ...], list[Record]] = {}
    unique = {record.run_id: record for record in records if not record.experiment.profile}
    for run in sorted(unique.values(), key=lambda record: (record.started_at, record.run_id)):
        own = run.source == "mlbench"
        groups.setdefault((run.source, run.key, str(run.seed) if own else run.run_id), []).append(run)
    return list(groups.values())


def results(records: Iterable[Record]) -> list[Record]:
    """Return the one run that counts of every trial that has one."""
    return [run for trial in by_seed(records) if (run := trial_result(trial)) is not None]


def censored(trials: Iterable[Sequence[Record]], times: Sequence[float]) -> list[Record]:
    """Return the interrupted runs that count as missed goals beside `times` (s, missed goals infinite).

    The one that had trained longest is looked at first; each that counts makes the median larger.
    """
    longest = [max(trial, key=_trained) for trial in trials if trial_result(trial) is None]
    counted, missed = list(times), []
    for run in sorted((run for run in longest if not run.contradictions), key=_trained, reverse=True):
        if counted and _trained(run) > 0 and _trained(run) >= median(counted):
            counted.append(math.inf)
            missed.append(run)
    return missed


def _trained(run: Record) -> float:
    """Return how long a run had trained without reaching its goal, s: to the end of its last validation."""
    return run.validations[-1].elapsed if run.validations else 0.0


def trial_result(attempts: Sequence[Record]) -> Record | None:
    """Return the run that counts of a trial's attempts, oldest first; None where all were interrupted."""
    failed = [run for run in attempts if run.status == "failed"]
    return failed[0] if failed else middle(attempts)


def middle(runs: Iterable[Record]) -> Record | None:
    """Return the finished run in the middle by time; None without one."""
    finished = sorted(filter(_counts, runs), key=_time)
    return finished[len(finished) // 2] if finished else None


def _counts(run: Record) -> bool:
    return run.status in FINISHED and not run.contradictions


def _time(run: Record) -> tuple[float, float, str]:
    reached = run.status == "goal_reached" and run.time_to_accuracy is not None
    to_goal = run.time_to_accuracy if reached else None if run.goal is None else math.inf
    elapsed = run.validations[-1].elapsed if run.validations else run.wall
    return (elapsed if to_goal is None else to_goal, elapsed, run.run_id)


def beside(records: Sequence[Record], *, deleted: int = 0) -> str:
    """Return what stands beside n, e.g. "1 failed, 2 interrupted, 1 repeated"; "" where all counted.

    Repeated are the finished runs of a seed beyond its first, contradictory those whose log contradicts
    itself, `deleted` those of which only the log of their study knows.
    """
    trials = by_seed(records)
    runs = [run for trial in trials for run in trial]
    repeated = sum(max(0, sum(map(_counts, trial)) - 1) for trial in trials)
    numbers = {
        "failed": sum(run.status == "failed" for run in runs),
        "interrupted": sum(run.status == "interrupted" for run in runs),
        "preempted": sum(run.status == "preempted" for run in runs),
        "deleted": deleted,
        "repeated": repeated,
        "contradictory": sum(run.status in FINISHED and bool(run.contradictions) for run in runs),
    }
    parts = [f"{number} {word}" for word, number in numbers.items() if number]
    return f"{counted(len(runs) + deleted, 'attempt')}: {', '.join(parts)}" if parts else ""

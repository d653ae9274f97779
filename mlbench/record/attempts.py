"""Choose the run that counts for each seed, for studies, plots, comparisons, pages and `mlbench.run`.

An experiment with one seed is a trial, and every run of it is an attempt. A trial counts once, however often
it was run. No attempt is hidden:

- One failed attempt makes the trial a failed one. It stays in n with infinite time, and running the seed
  again does not repair it.
- Of several finished attempts the middle one by time counts. Missed goals come last, and of an even number
  the slower of the two in the middle counts. Repeating a seed therefore makes a point neither larger nor
  faster.
- A run with profile=N is no attempt, because torch.profiler slowed it.
- A finished attempt with a contradictory log is no result either, because nothing in it is a measurement.
- An interrupted or preempted attempt is no result. A trial without any other is not in n and is listed
  separately. But its time to the goal is longer than it had trained (a censored time). If that is not less
  than the median of the point's others, its time lies above the median, and it counts as a missed goal.
"""

import math
from collections.abc import Iterable, Sequence
from operator import or_
from statistics import median
from typing import NamedTuple

from mlbench.record.format import counted
from mlbench.record.record import FINISHED, Record


class History(NamedTuple):
    """The history of a point in the studies below an output_root.

    - planned: all of its seeds.
    - drawn: the seeds that a sweep drew.
    - logged: the seeds with an attempt in a log.
    - deleted: the runs that the studies' logs name and that no longer have a readable record.
    - unfinished: the runs without a record that still go on, or were killed and are not concluded yet.
    """

    planned: frozenset[int] = frozenset()
    drawn: frozenset[int] = frozenset()
    logged: frozenset[int] = frozenset()
    deleted: frozenset[str] = frozenset()
    unfinished: frozenset[str] = frozenset()

    def __or__(self, other: "History") -> "History":
        """Return the union of both histories."""
        return History._make(map(or_, self, other))


def by_seed(records: Iterable[Record]) -> list[list[Record]]:
    """Return the runs of each experiment and seed, oldest first. Equal run ids count once.

    Published results of others have no seeds, so each is a separate trial.
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
    """Return the interrupted runs that count as missed goals, given `times` (s, missed goals infinite).

    The run that trained longest is tested first, because each one that counts makes the median larger.
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
    """Return the run that counts of a trial's attempts, oldest first, or None if all were interrupted."""
    failed = [run for run in attempts if run.status == "failed"]
    return failed[0] if failed else middle(attempts)


def middle(runs: Iterable[Record]) -> Record | None:
    """Return the finished run in the middle by time, or None if none finished."""
    finished = sorted(filter(_counts, runs), key=_time)
    return finished[len(finished) // 2] if finished else None


def _counts(run: Record) -> bool:
    return run.status in FINISHED and not run.contradictions


def _time(run: Record) -> tuple[float, float, str]:
    reached = run.status == "goal_reached" and run.time_to_accuracy is not None
    to_goal = run.time_to_accuracy if reached else None if run.goal is None else math.inf
    elapsed = run.validations[-1].elapsed if run.validations else run.wall
    return (elapsed if to_goal is None else to_goal, elapsed, run.run_id)


def excluded_summary(records: Sequence[Record], *, deleted: int = 0) -> str:
    """Describe the runs that do not count, e.g. "1 failed, 2 interrupted, 1 repeated", or "" if all counted.

    Repeated are the finished runs of a seed beyond its first. Contradictory are the runs with a log that
    contradicts itself. `deleted` are the runs that appear only in the log of their study.
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

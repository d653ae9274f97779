"""Which run counts for a seed. Studies, plots, comparisons, pages and `mlbench.run` all ask here.

An experiment with one seed is a trial; every run of it is an attempt. A trial counts once, however often it
was run, and no attempt is hidden:

- One attempt that failed makes the trial a failed one: it stays in n with infinite time. Running the seed
  again does not repair it.
- Of several finished attempts the middle one by time counts (missed goals last; of an even number the slower
  of the two in the middle), so that repeating a seed makes a point neither larger nor faster.
- A run with profile=N is no attempt: torch.profiler slowed it.
- An interrupted or preempted attempt is no result. A trial that has no other is not in n; it stands beside
  it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mlbench.experiment.format import counted
from mlbench.experiment.record import FINISHED, Record


class Attempts(NamedTuple):
    """All runs of one experiment with one seed, oldest first."""

    runs: tuple[Record, ...]

    @property
    def result(self) -> Record | None:
        """The run that counts; None where every attempt was interrupted."""
        failed = [run for run in self.runs if run.status == "failed"]
        return failed[0] if failed else middle(self.runs)


def by_seed(records: Iterable[Record]) -> list[Attempts]:
    """Group runs by experiment and seed, in the order of each group's first run; equal run ids count once.

    Results that others published have no seeds: each is a trial of its own.
    """
    groups: dict[tuple[str, ...], list[Record]] = {}
    unique = {record.run_id: record for record in records if not record.experiment.profile}
    for run in sorted(unique.values(), key=lambda record: (record.started_at, record.run_id)):
        own = run.source == "mlbench"
        groups.setdefault((run.source, run.key, str(run.seed) if own else run.run_id), []).append(run)
    return [Attempts(tuple(runs)) for runs in groups.values()]


def results(records: Iterable[Record]) -> list[Record]:
    """Return the one run that counts of every trial that has one."""
    return [run for trial in by_seed(records) if (run := trial.result) is not None]


def middle(runs: Iterable[Record]) -> Record | None:
    """Return the finished run in the middle by time; None without one."""
    finished = sorted((run for run in runs if run.status in FINISHED), key=_time)
    return finished[len(finished) // 2] if finished else None


def _time(run: Record) -> tuple[float, float, str]:
    reached = run.status == "goal_reached" and run.time_to_accuracy is not None
    to_goal = run.time_to_accuracy if reached else None if run.goal is None else math.inf
    elapsed = run.validations[-1].elapsed if run.validations else run.wall
    return (elapsed if to_goal is None else to_goal, elapsed, run.run_id)


def beside(records: Sequence[Record]) -> str:
    """Return what stands beside n, e.g. "1 failed, 2 interrupted, 1 repeated"; "" where all counted.

    Failed are all attempts that failed, interrupted and preempted those of no result, repeated the finished
    runs of a seed beyond its first.
    """
    trials = by_seed(records)
    runs = [run for trial in trials for run in trial.runs]
    repeated = sum(max(0, sum(run.status in FINISHED for run in trial.runs) - 1) for trial in trials)
    numbers = {
        "failed": sum(run.status == "failed" for run in runs),
        "interrupted": sum(run.status == "interrupted" for run in runs),
        "preempted": sum(run.status == "preempted" for run in runs),
        "repeated": repeated,
    }
    parts = [f"{number} {word}" for word, number in numbers.items() if number]
    return f"{counted(len(runs), 'attempt')}: {', '.join(parts)}" if parts else ""

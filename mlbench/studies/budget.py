"""What a study has cost, and what its next trial will: from the runs it has, and from nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from mlbench import clock
from mlbench.config.experiment import Experiment
from mlbench.record import cost
from mlbench.record.format import duration, usd
from mlbench.record.record import FINISHED, Record


class Budget:
    """Money and time of a study, in USD at the on-demand price, for the wall clock of each run.

    The cluster of a submitted run also costs before it: from its submission, or from the end of the previous
    run on the same Ray cluster. Its price includes all that a cloud bills in addition to the workers' nodes.

    - experiments: the points by key.
    - runs: every attempt there is, also failed and interrupted ones, which cost as well.
    - max_usd: (default None: no limit) for all runs of the study together.
    - expires: (default None: never) when the cluster ends, s since 1970. ends: when max_time is over.
    """

    def __init__(
        self,
        experiments: Mapping[str, Experiment],
        runs: Iterable[Record] = (),
        *,
        max_usd: float | None = None,
        expires: float | None = None,
        ends: float | None = None,
    ) -> None:
        self._experiments = experiments
        self._max_usd = max_usd
        self._limits = [
            ("the cluster expires", "the cluster has been gone", expires),
            ("max_time is over", "max_time has been over", ends),
        ]
        self._seconds: dict[str, list[float]] = {}
        self._longest: dict[str, float] = {}  # s, by task
        self._ends: dict[str | None, float] = {}  # s since 1970, of the last run on each Ray cluster
        self.spent: float | None = None  # USD. None: no run had a price
        for run in sorted(runs, key=lambda run: run.ended_at):
            self.add(run)

    def add(self, run: Record, *, seconds: float | None = None) -> None:
        """Count a run that ended. `seconds` (default: its wall clock) is how long the next one waited."""
        rate = cost.usd_per_hour(run.experiment)
        if rate is not None:
            self.spent = (self.spent or 0.0) + cost.usd(run.wall + self._idle_s(run), 1, rate)
        if run.status in FINISHED:
            took = seconds or run.wall
            self._seconds.setdefault(run.key, []).append(took)
            if run.key in self._experiments:
                task = self._experiments[run.key].task.name
                self._longest[task] = max(took, self._longest.get(task, took))

    def _idle_s(self, run: Record) -> float:
        """Return how long the nodes of a submitted run were there before its command began, in s."""
        if run.submission is None:
            return 0.0
        end, cluster = run.end_time, run.submission.ray_cluster
        whole = run.cost.whole if run.cost else None
        idle_s = (whole.provisioning_s if whole else None) or 0.0
        if cluster in self._ends:
            idle_s = end - run.wall - self._ends[cluster]
        if cluster is not None:
            self._ends[cluster] = end
        return max(idle_s, 0.0)

    def seconds(self, key: str) -> float | None:
        """Return how long one run of this point takes.

        The median of the point's runs. Without any, the longest run of the same task, else None.
        """
        if key in self._seconds:
            return median(self._seconds[key])
        return self._longest.get(self._experiments[key].task.name)

    def usd(self, key: str) -> float | None:
        """Return what one run of this point costs. None if that is unknown or it has no price."""
        rate, seconds = cost.usd_per_hour(self._experiments[key]), self.seconds(key)
        return None if rate is None or seconds is None else cost.usd(seconds, 1, rate)

    def refusal(self, key: str) -> str | None:
        """Return why the next run would exceed a limit, None if it may start.

        The first run of a task has no estimate, so it may, unless money or time are used up.
        """
        takes = self.seconds(key)
        for ahead, past, end in self._limits:
            if end is not None and (left := end - clock.wall()) <= (takes or 0.0):
                expected = f", the next run takes about {duration(takes)}" if takes is not None else ""
                when = f"{ahead} in {duration(left)}" if left > 0 else f"{past} for {duration(-left)}"
                return f"{when}{expected}"
        if self._max_usd is None:
            return None
        spent, next_run = self.spent or 0.0, self.usd(key)
        if spent + (next_run or 0.0) < self._max_usd:
            return None
        expected = f", the next run costs about {usd(next_run)}" if next_run is not None else ""
        return f"max_usd={self._max_usd:g} would be exceeded: {usd(spent)} spent{expected}"

    def left(self, keys: Sequence[str]) -> float | None:
        """Return how many seconds these runs take together, or None while one of them is unknown."""
        each = [self.seconds(key) for key in keys]
        return None if None in each else sum(filter(None, each))

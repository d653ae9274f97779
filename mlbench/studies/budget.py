"""What a study has cost, and what its next trial will: from the runs it has, and from nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median

from mlbench.experiment import clock, cost
from mlbench.experiment.config import Experiment
from mlbench.experiment.format import duration, usd
from mlbench.experiment.record import FINISHED, Record


class Budget:
    """Money and time of a study; USD at the on-demand price, for the wall clock of each run.

    The nodes of a run that was submitted cost before it, too: from its submission, or from the end of the run
    before it on the same Ray cluster.

    - experiments: the points by key.
    - runs: every attempt there is, also failed and interrupted ones, which cost as well.
    - max_usd: (default None: no limit) for all runs of the study together.
    - expires: (default None: never) when the cluster ends, s since 1970.
    """

    def __init__(
        self,
        experiments: Mapping[str, Experiment],
        runs: Iterable[Record] = (),
        *,
        max_usd: float | None = None,
        expires: float | None = None,
    ) -> None:
        self._experiments = experiments
        self._max_usd, self._expires = max_usd, expires
        self._seconds: dict[str, list[float]] = {}
        self._longest: dict[str, float] = {}  # s, by task
        self._ends: dict[str | None, float] = {}  # s since 1970, of the last run on each Ray cluster
        self.spent: float | None = None  # USD; None: no run had a price
        for run in sorted(runs, key=lambda run: run.ended_at):
            self.add(run)

    def add(self, run: Record, *, seconds: float | None = None) -> None:
        """Count a run that ended; `seconds` (default: its wall clock) is how long the next one waited."""
        if run.cost is not None:
            self.spent = (self.spent or 0.0) + run.cost.wall_usd + self._idle_usd(run)
        if run.status in FINISHED:
            took = seconds or run.wall
            self._seconds.setdefault(run.key, []).append(took)
            if run.key in self._experiments:
                task = self._experiments[run.key].task.name
                self._longest[task] = max(took, self._longest.get(task, took))

    def _idle_usd(self, run: Record) -> float:
        """Return what the nodes of a submitted run cost before its command began."""
        price, whole = run.experiment.hardware.price, run.cost.whole if run.cost else None
        if run.submission is None or price is None:
            return 0.0
        end, cluster = datetime.fromisoformat(run.ended_at).timestamp(), run.submission.ray_cluster
        idle_s = (whole.provisioning_s if whole else None) or 0.0
        if cluster in self._ends:
            idle_s = end - run.wall - self._ends[cluster]
        if cluster is not None:
            self._ends[cluster] = end
        nodes = cost.nodes(run.experiment.hardware, run.experiment.workers)
        return cost.usd(max(idle_s, 0.0), nodes, price.usd_per_hour)

    def seconds(self, key: str) -> float | None:
        """Return how long one run of this point takes.

        The median of its own runs; before there is one, the longest run of the same task; else None.
        """
        if key in self._seconds:
            return median(self._seconds[key])
        return self._longest.get(self._experiments[key].task.name)

    def usd(self, key: str) -> float | None:
        """Return what one run of this point costs; None where that is unknown or it has no price."""
        experiment, seconds = self._experiments[key], self.seconds(key)
        price = experiment.hardware.price
        if price is None or seconds is None:
            return None
        return cost.usd(seconds, cost.nodes(experiment.hardware, experiment.workers), price.usd_per_hour)

    def refusal(self, key: str) -> str | None:
        """Return why the next run would exceed a limit, None if it may start.

        The first run of a task has no estimate, so it may, unless money or time are used up.
        """
        if self._expires is not None:
            left, takes = self._expires - clock.wall(), self.seconds(key)
            if left <= (takes or 0.0):
                expected = f", the next run takes about {duration(takes)}" if takes is not None else ""
                return f"the cluster expires in {duration(max(left, 0.0))}{expected}"
        if self._max_usd is None:
            return None
        spent, next_run = self.spent or 0.0, self.usd(key)
        if spent + (next_run or 0.0) < self._max_usd:
            return None
        expected = f", the next run costs about {usd(next_run)}" if next_run is not None else ""
        return f"max_usd={self._max_usd:g} would be exceeded: {usd(spent)} spent{expected}"

    def left(self, keys: Sequence[str]) -> float | None:
        """Return how many seconds these runs take together; None while one of them is unknown."""
        each = [self.seconds(key) for key in keys]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) if len(known) == len(each) else None

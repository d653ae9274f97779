"""Build the points of a study from all runs of one experiment, whatever their seeds."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlbench.analysis import pooling
from mlbench.analysis.bootstrap import interval, median, olympic_mean
from mlbench.config.errors import comparable
from mlbench.config.goal import Goal
from mlbench.config.identity import identity
from mlbench.config.plugins import TORCH
from mlbench.record import attempts, official
from mlbench.record.attempts import History
from mlbench.record.cost import nodes
from mlbench.record.record import Record

COMPUTE = ("forward", "loss", "backward", "optimizer")  # what MLBench counted as compute
SOURCE = "mlbench"  # of records that this suite measured
# Of a series. A run that ended early may lack them.
OPTIONAL_FIELDS = ("torch", "framework_version", "data", "machine")
TIMED = ("goal_reached", "goal_not_reached", "completed")  # ended after whole epochs


@dataclass(frozen=True)
class MedianEstimate:
    """The median of `n` runs and its interval. `low` and `high` are None for one run, without spread."""

    value: float
    low: float | None
    high: float | None
    n: int

    def times(self, factor: float) -> "MedianEstimate":
        """Return the estimate in another unit."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return MedianEstimate(factor * self.value, low, high, n=self.n)


@dataclass(frozen=True)
class Point:
    """All runs with one key. Seconds and USD, infinite if half of the runs or more missed the goal.

    - series: what another point must share to be compared with this one, as (field, JSON value).
    - times, compute_times: one value a run with a goal, in the order of `records`. A missed goal is infinite.
      compute_times is empty if a run that reached the goal was not instrumented.
    - time_to_accuracy, usd, usd_spot: to the goal from the first access to data, None without one. USD is
      also None if a run that reached it had no price. usd_with_startup: from the command to the goal.
    - epochs x seconds_per_epoch is time_to_accuracy in every single run (not for their medians). The time
      outside the batches, validations above all, is inside seconds_per_epoch.
    - phases, outside: s per epoch, mean over ranks and runs, so that they add up.
    - exposed, overlapped: communication as a share of the time in batches.
    - joules: energy to the goal, of the parts that could be read. joules_per_sample: likewise.
    - usd_cluster: what the whole cluster of a run is billed for, on demand. None but on clouds' clusters.
    - disturbed: why the times of runs are not those of a quiet machine, by run id. They are listed and enter
      no other value, unless requested or unless nothing else was measured.
    - mixture: what the pooled runs do not share though it may change their times.
    - attempts: all runs, also those without a result. deleted: how many more a study's log has.
    - unofficial: why the point is not official, one sentence each.
    """

    key: str
    source: str
    records: tuple[Record, ...]
    series: tuple[tuple[str, str], ...]
    task: str
    scale: str
    recipe: str
    workers: int
    backend: str
    sync: str
    hardware: str
    network: str  # in words ("host": the machines' real one)
    emulated: bool  # whether the network is
    goal: Goal | None
    nodes: int
    reached: int
    missed: tuple[str, ...]  # run ids
    oversubscribed: bool
    caveats: tuple[str, ...]
    threads: tuple[int, ...]  # CPU threads of a worker, as the nodes report
    times: tuple[float, ...]
    compute_times: tuple[float, ...]
    time_to_accuracy: MedianEstimate | None
    olympic: float | None  # MLPerf's mean of the times, s (None for fewer than three runs)
    compute: MedianEstimate | None
    epochs: MedianEstimate | None
    seconds_per_epoch: MedianEstimate | None
    outside_per_epoch: MedianEstimate | None
    phases: dict[str, float]
    outside: dict[str, float]
    exposed: MedianEstimate | None
    overlapped: MedianEstimate | None
    samples_per_s: MedianEstimate | None
    usd: MedianEstimate | None
    usd_spot: MedianEstimate | None
    usd_with_startup: MedianEstimate | None
    joules: MedianEstimate | None
    joules_per_sample: MedianEstimate | None
    disturbed: dict[str, str]
    mixture: tuple[str, ...]
    usd_cluster: MedianEstimate | None
    attempts: tuple[Record, ...]
    deleted: int
    unofficial: tuple[str, ...]

    @property
    def n(self) -> int:
        """The number of runs that count, missed ones included. Disturbed ones are counted separately."""
        return len(self.records)

    @property
    def median_s(self) -> float:
        """The value of time_to_accuracy, s, which is also infinite without one."""
        return self.time_to_accuracy.value if self.time_to_accuracy else math.inf

    @property
    def usd_spent(self) -> float | None:
        """What all attempts cost from command to end, with disturbed and interrupted ones. None: no price."""
        bills = [run.cost.wall_usd for run in self.attempts if run.cost]
        return math.fsum(bills) if bills else None

    @property
    def left_out(self) -> dict[str, str]:
        """Why disturbed runs are listed and enter no value, by run id."""
        counted = {run.run_id for run in self.records}
        return {run_id: reason for run_id, reason in self.disturbed.items() if run_id not in counted}

    @property
    def exclusion_reason(self) -> str | None:
        """Why no speed-up may be taken from these runs, or None if one may."""
        if self.oversubscribed:
            return "its workers shared CPUs (oversubscribed)"
        if self.caveats and self.source == SOURCE:  # an archive's caveats explain its numbers
            return self.caveats[0]
        if any("machines" in what for what in self.mixture):
            return "its runs were measured on several kinds of machines"
        return None if self.times else "its runs had no goal"


def points(
    records: Iterable[Record],
    *,
    with_disturbed: bool = False,
    histories: Mapping[str, History] | None = None,
) -> list[Point]:
    """Return the points of a study, few workers first. Every seed counts once (experiment.attempts).

    `with_disturbed`: pool also runs with other load on their machine. `histories`: the histories of points in
    studies, by key (`study.histories`).
    """
    every: dict[tuple[str, str], list[Record]] = {}
    records = list({run.run_id: run for run in records}.values())
    for run in records:
        every.setdefault((run.source, run.key), []).append(run)
    result = []
    for runs in by_configuration(records):
        tries = every[runs[0].source, runs[0].key]
        history = (histories or {}).get(runs[0].key, History())
        if runs[0].goal is not None:
            runs += attempts.censored(attempts.by_seed(tries), [time_to_goal(run) for run in runs])
        result.append(_point(runs, tries, history, with_disturbed=with_disturbed))
    return sorted(result, key=lambda point: (point.source, point.series, point.workers))


def by_configuration(records: Iterable[Record]) -> list[list[Record]]:
    """Return the runs that count for their seeds, those of one experiment together."""
    configurations: dict[tuple[str, str], list[Record]] = {}
    for run in attempts.results(records):
        configurations.setdefault((run.source, run.key), []).append(run)
    return list(configurations.values())


def estimate(values: Sequence[float]) -> MedianEstimate | None:
    """Return median and interval of a sample, or None for an empty one."""
    if not values:
        return None
    spread = interval(values)
    ends = (spread.low, spread.high) if spread else (None, None)
    return MedianEstimate(median(values), *ends, n=len(values))


def series(record: Record) -> tuple[tuple[str, str], ...]:
    """Return what two runs must share, their numbers of workers aside, to be compared.

    These are the identity fields of the configuration, the goal, the measuring suite, and the prepared data.
    They must also share Major.Minor of mlbench, and the versions of torch and of another framework. If the
    hardware profile does not state the node's shape (local), they must share its processors as the nodes
    report them.
    """
    shared = identity(record.experiment.plain())
    shared.pop("workers", None)
    shared |= {
        "source": record.source,
        "goal": str(record.goal) if record.goal else None,
        "mlbench": comparable(record.mlbench),
    }
    other = record.experiment.framework if record.experiment.framework != TORCH else None
    optional: dict[str, Any] = {
        "torch": record.software.packages.get("torch"),
        "framework_version": other and record.software.packages.get(other),
        "data": record.data_hash,
        "machine": pooling.machine(record) if shared.get("hardware.cpus") is None else None,
    }
    shared |= {name: value for name, value in optional.items() if value}
    return tuple(sorted((name, json.dumps(value, sort_keys=True)) for name, value in shared.items()))


def required_fields(point: Point) -> frozenset[tuple[str, str]]:
    """Return the fields in which any difference counts: equal ones are a cheap first test of two points."""
    return frozenset(field for field in point.series if field[0] not in OPTIONAL_FIELDS)


def differences(point: Point, other: Point) -> list[str]:
    """Return the fields in which two points differ, except for workers and for fields that a run lacks."""
    a, b = dict(point.series), dict(other.series)
    names = (name for name in sorted(a | b) if name not in OPTIONAL_FIELDS or (name in a and name in b))
    return [name for name in names if a.get(name) != b.get(name)]


def _point(runs: list[Record], tries: list[Record], history: History, *, with_disturbed: bool) -> Point:
    """Return the point of the undisturbed runs, or of all if requested or if there is no other."""
    disturbed = pooling.disturbed(runs)
    quiet = [run for run in runs if run.run_id not in disturbed]
    if not with_disturbed and any(run.status in TIMED for run in quiet):
        runs = quiet
    ignored = {sentence for run in runs for sentence in run.disturbances if with_disturbed}
    experiment = runs[0].experiment
    ended = [run for run in runs if run.status in TIMED]
    timed = [run for run in ended if run.epochs > 0 and math.isfinite(_elapsed(run))]
    aimed = runs if runs[0].goal is not None else []  # at a goal
    epochs = [to_goal(run, run.epochs) for run in aimed]
    compute = [to_goal(run, sum(run.phases[p].mean for p in COMPUTE if p in run.phases)) for run in aimed]
    outside = [_elapsed(run) - math.fsum(spread.mean for spread in run.phases.values()) for run in timed]
    instrumented = all({*COMPUTE} <= {*run.phases} for run in runs if run.status == "goal_reached")
    times = [time_to_goal(run) for run in aimed]
    return Point(
        key=runs[0].key,
        source=runs[0].source,
        records=tuple(runs),
        series=_common(runs),
        task=experiment.task.name,
        recipe=experiment.task.recipe,
        scale=experiment.scale,
        workers=runs[0].workers,
        backend=experiment.backend.name,
        sync=experiment.sync.name,
        hardware=experiment.hardware.name,
        network=str(experiment.network),
        emulated=experiment.network.emulated,
        goal=runs[0].goal,
        nodes=nodes(experiment.hardware, runs[0].workers),
        reached=sum(run.status == "goal_reached" for run in runs),
        missed=tuple(run.run_id for run in runs if run.status not in ("goal_reached", "completed")),
        oversubscribed=any(run.oversubscribed for run in runs),
        caveats=tuple(sorted({caveat for run in runs for caveat in run.caveats} - ignored)),
        threads=tuple(sorted({node.threads_per_worker or 0 for run in runs for node in run.nodes})),
        times=tuple(times),
        compute_times=tuple(compute) if instrumented else (),
        time_to_accuracy=estimate(times),
        olympic=olympic_mean(times),
        compute=estimate(compute) if instrumented else None,
        epochs=estimate(epochs if all(epochs) else []),  # a script reports none
        seconds_per_epoch=estimate([_elapsed(run) / run.epochs for run in timed]),
        outside_per_epoch=estimate([s / run.epochs for run, s in zip(timed, outside, strict=True)]),
        phases=_per_epoch(timed, lambda run: run.phases),
        outside=_per_epoch(timed, lambda run: run.outside),
        exposed=estimate([s for run in runs if (s := run.exposed_communication_share) is not None]),
        overlapped=estimate([s for run in runs if (s := _overlapped(run)) is not None]),
        samples_per_s=estimate([run.samples_per_s for run in ended if run.samples_per_s]),
        usd=_median_to_goal(aimed, lambda run: run.cost and run.cost.goal_usd),
        usd_spot=_median_to_goal(aimed, lambda run: run.cost and run.cost.goal_usd_spot),
        usd_with_startup=_median_to_goal(aimed, _usd_with_startup),
        joules=_median_to_goal(aimed, lambda run: run.energy and run.energy.goal_joules),
        joules_per_sample=estimate([j for run in runs if run.energy and (j := run.energy.joules_per_sample)]),
        usd_cluster=estimate([run.cost.whole.usd for run in runs if run.cost and run.cost.whole]),
        disturbed=disturbed,
        mixture=pooling.mixture(runs),
        attempts=tuple(tries),
        deleted=len(history.deleted),
        unofficial=tuple(official.of_point(runs, tries, history)),
    )


def _common(runs: list[Record]) -> tuple[tuple[str, str], ...]:
    """Return the runs' series. A field that differs among them holds all its values, and fits no other."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in series(run):
            values.setdefault(name, set()).add(value)
    return tuple((name, " | ".join(sorted(several))) for name, several in sorted(values.items()))


def time_to_goal(run: Record) -> float:
    """Return the run's time to accuracy, infinite if it missed its goal, s."""
    return to_goal(run, run.time_to_accuracy)


def to_goal(run: Record, value: float | None) -> float:
    """Return the run's value, infinite if it missed its goal."""
    return value if run.status == "goal_reached" and value is not None else math.inf


def _elapsed(run: Record) -> float:
    """Return the seconds from the first access to data to the end of the last validation."""
    if run.time_to_accuracy is not None:
        return run.time_to_accuracy
    return run.validations[-1].elapsed if run.validations else math.nan


def _per_epoch(runs: list[Record], parts: Callable[[Record], dict[str, Any]]) -> dict[str, float]:
    """Return the seconds per epoch by part, the mean over runs."""
    measured = [(run.epochs, own) for run in runs if (own := parts(run))]
    names = dict.fromkeys(name for _, own in measured for name in own)
    sums = {name: [own[name].mean / epochs for epochs, own in measured if name in own] for name in names}
    return {name: math.fsum(each) / len(measured) for name, each in sums.items()}


def _overlapped(run: Record) -> float | None:
    """Return the communication hidden by backward as a share of the time in batches (None: not measured)."""
    total = math.fsum(spread.mean for spread in run.phases.values())
    return run.overlapped_communication.mean / total if run.overlapped_communication and total else None


def _usd_with_startup(run: Record) -> float | None:
    """Return the price from the command to the goal. None without one or if the start was not timed."""
    usd = run.cost and run.cost.goal_usd
    if usd is None or not run.time_to_accuracy or run.startup_time is None:
        return None
    return usd * (1 + run.startup_time / run.time_to_accuracy)


def _median_to_goal(runs: list[Record], value: Callable[[Record], float | None]) -> MedianEstimate | None:
    """Return the median of what the goal took, or None unless it is known of every run that reached it."""
    reached = [value(run) for run in runs if run.status == "goal_reached"]
    if not reached or None in reached:
        return None
    return estimate([to_goal(run, value(run)) for run in runs])

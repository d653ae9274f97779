"""What a prediction needs of a run: seconds of each phase, steps, samples and epochs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from mlbench.analysis import pooling
from mlbench.analysis.points import by_configuration, series
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware
from mlbench.record.phases import exposed
from mlbench.record.record import Record

# The batch grows as workers ** power; the power is 0 or 1, but for short batches at the end of an epoch.
FIXED, GROWING = 0.25, 0.75
FITTED = ("goal_reached", "goal_not_reached", "completed")


@dataclass(frozen=True)
class RunTimings:
    """One run; seconds are sums over the run, of the mean rank."""

    workers: int
    reached: bool  # whether its epochs are epochs to the goal
    epochs: float
    steps: float
    samples: float  # of all workers
    validations: int
    compute_s: float  # forward, loss, backward
    optimizer_s: float
    data_wait_s: float  # waiting for data, metrics of the training batch
    communication_s: float  # exposed
    overlapped_s: float  # communication hidden behind backward
    outside_s: float  # the clock's time outside the batches: loading, validation, reports
    startup_s: float | None = None

    @property
    def total_s(self) -> float:
        """The clock at the end of the run."""
        batches = self.compute_s + self.optimizer_s + self.data_wait_s + self.communication_s
        return batches + self.outside_s

    @property
    def batch(self) -> float:
        """Samples a step, of all workers."""
        return self.samples / self.steps


@dataclass(frozen=True)
class Measurements:
    """Runs that differ in workers and seed alone, and what they have in common.

    - gradient_bytes: what a step's all-reduce sums; None where the source does not say.
    - network: the link of the emulated hosts in words; None where the runs used a real network.
    - left_out: a sentence for each run that is not among `runs`.
    - notes: sentences about the source of the numbers.
    """

    title: str
    task: str
    runs: tuple[RunTimings, ...]
    hardware: Hardware
    precision: str
    gradient_bytes: float | None
    network: str | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> list[int]:
        """The worker counts that were measured."""
        return sorted({run.workers for run in self.runs})

    @property
    def grows(self) -> bool:
        """Whether the global batch grows with the workers, each keeping its own."""
        return _power(self.runs) > GROWING

    def only(self, counts: Sequence[int]) -> "Measurements":
        """Return these measurements at the given worker counts."""
        return replace(self, runs=tuple(run for run in self.runs if run.workers in counts))

    def times(self, workers: int) -> list[float]:
        """Return the time to accuracy of each run at this worker count; infinite where it was missed."""
        return [run.total_s if run.reached else math.inf for run in self.runs if run.workers == workers]


def check(measurements: Measurements) -> Measurements:
    """Return what can be fitted; UserError where there are too few worker counts or two batch rules."""
    if len(measurements.counts) < 2:
        have = ", ".join(map(str, measurements.counts)) or "none"
        left_out = f"; left out: {'; '.join(measurements.left_out)}" if measurements.left_out else ""
        raise UserError(
            f"a prediction needs runs at 2 or more worker counts, these have {have}{left_out}",
            hint="measure more, e.g. python -m mlbench.sweep workers=1,2,4",
        )
    if FIXED < _power(measurements.runs) < GROWING:
        raise UserError(
            "the batch of a step neither stays the same nor grows with the workers",
            hint="predict from runs of one recipe",
        )
    if not any(run.reached for run in measurements.runs):
        raise UserError(
            "no run reached its goal, so there is no time to accuracy to predict", hint="set a goal"
        )
    return measurements


def from_records(records: Sequence[Record], *, title: str) -> Measurements:
    """Return the measurements in records of one experiment at several worker counts.

    Every seed counts once (experiment.attempts). Runs that shared CPUs, were disturbed, carry another caveat,
    failed or took no phase times are left out and named. Raises UserError for records of several experiments.
    """
    if not records:
        raise UserError(f"{title} has no finished run", hint="python -m mlbench.results list")
    reasons = {run.run_id: f"does not count for its seed ({run.status})" for run in records}
    for runs in by_configuration(records):
        disturbed = pooling.disturbed(runs)
        reasons |= {run.run_id: _exclusion_reason(run, disturbed) or "" for run in runs}
    fitted = [run for run in records if not reasons[run.run_id]]
    differing = mixture(fitted)
    if differing:
        tasks = dict.fromkeys(run.experiment.task.name for run in fitted)
        if len(tasks) > 1:
            sentence = f"{title} has runs of {len(tasks)} tasks: {', '.join(tasks)}"
            raise UserError(sentence, hint=f"choose one, e.g. task={next(iter(tasks))}")
        raise UserError(
            f"{title} mixes experiments: {'; '.join(differing)}",
            hint="choose one, e.g. backend=gloo, or name the runs",
        )
    first = (fitted or records)[0].experiment
    return Measurements(
        title=title,
        task=first.task.name,
        runs=tuple(map(_timings, fitted)),
        hardware=first.hardware,
        precision=getattr(first.task, "precision", None) or "fp32",
        gradient_bytes=fitted[0].gradient_bytes if fitted else None,
        network=f"network={first.network.name} ({first.network})" if first.network.emulated else None,
        left_out=tuple(
            f"{run.run_id} ({run.workers} workers) {reasons[run.run_id]}"
            for run in records
            if reasons[run.run_id]
        ),
    )


def mixture(records: Sequence[Record]) -> list[str]:
    """Return the fields, but for workers and seed, in which the experiments differ, with their values.

    Of a group that differs in its name, e.g. two tasks, the name alone is returned.
    """
    values: dict[str, set[str]] = {}
    for fields in [dict(series(one)) for one in records]:
        for name, value in fields.items():
            values.setdefault(name, set()).add(value)
    differing = sorted(name for name, several in values.items() if len(several) > 1)
    groups = {name.removesuffix(".name") for name in differing if name.endswith(".name")}
    return [
        f"{name} is {' and '.join(sorted(values[name]))}"
        for name in differing
        if name.endswith(".name") or name.split(".")[0] not in groups
    ]


def _exclusion_reason(run: Record, disturbed: Mapping[str, str]) -> str | None:
    """Return why a run is not fitted; None if it is."""
    reasons = {
        "had more workers than CPUs": run.oversubscribed,
        f"has a caveat: {(run.caveats or ['none'])[0]}": run.caveats,
        f"was disturbed: {disturbed.get(run.run_id)}": run.run_id in disturbed,
        f"is {run.status.replace('_', ' ')}": run.status not in FITTED,
        "went on after a failure": run.restarts,
        "has no phase times": not run.phases or not run.steps,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _timings(run: Record) -> RunTimings:
    phases = {name: spread.mean for name, spread in run.phases.items()}
    compute = math.fsum(phases[name] for name in ("forward", "loss", "backward"))
    communication = exposed(phases)
    if run.workers == 1:  # nothing is sent, so this is the end of backward
        compute, communication = compute + communication, 0.0
    overlapped = run.overlapped_communication
    return RunTimings(
        workers=run.workers,
        reached=run.status == "goal_reached",
        epochs=run.epochs,
        steps=run.steps,
        samples=run.samples,
        validations=len(run.validations),
        compute_s=compute,
        optimizer_s=phases["optimizer"],
        data_wait_s=phases["data_wait"] + phases["metrics"],
        communication_s=communication,
        overlapped_s=overlapped.mean if overlapped and run.workers > 1 else 0.0,
        outside_s=max(0.0, run.validations[-1].elapsed - math.fsum(phases.values())),
        startup_s=run.startup_time,
    )


def _power(runs: Sequence[RunTimings]) -> float:
    """Return p of global batch = const * workers ** p, between the fewest and the most workers."""
    ends = min(run.workers for run in runs), max(run.workers for run in runs)
    few, many = (median(run.batch for run in runs if run.workers == k) for k in ends)
    return math.log(many / few) / math.log(ends[1] / ends[0])

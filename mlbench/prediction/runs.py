"""What a prediction needs of a run: seconds of each phase, updates, samples and epochs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from mlbench.analysis.points import TOLD, series
from mlbench.experiment.config import Hardware
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record

# The batch grows as workers ** power; the power is 0 or 1, but for short batches at the end of an epoch.
FIXED, GROWING = 0.25, 0.75
FITTED = ("goal_reached", "goal_not_reached", "completed")


@dataclass(frozen=True)
class Measured:
    """One run; seconds are sums over the run, of the mean rank."""

    workers: int
    reached: bool  # whether its epochs are epochs to the goal
    epochs: float
    updates: float
    samples: float  # of all workers
    validations: int
    compute_s: float  # forward, loss, backward
    optimizer_s: float
    feeding_s: float  # waiting for data, metrics of the training batch
    communication_s: float  # exposed
    overlapped_s: float  # communication hidden behind backward
    outside_s: float  # the clock's time outside the batches: loading, validation, reports
    startup_s: float | None = None

    @property
    def total_s(self) -> float:
        """The clock at the end of the run."""
        batches = self.compute_s + self.optimizer_s + self.feeding_s + self.communication_s
        return batches + self.outside_s

    @property
    def batch(self) -> float:
        """Samples an update, of all workers."""
        return self.samples / self.updates


@dataclass(frozen=True)
class Measurements:
    """Runs that differ in workers and seed alone, and what they have in common.

    - gradient_bytes: what an update's all-reduce sums; None where the source does not say.
    - left_out: a sentence for each run that is not among `runs`.
    - notes: sentences about the source of the numbers.
    """

    title: str
    task: str
    runs: tuple[Measured, ...]
    hardware: Hardware
    precision: str
    gradient_bytes: float | None
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


def check(found: Measurements) -> Measurements:
    """Return what can be fitted; UserError where there are too few worker counts or two batch rules."""
    if len(found.counts) < 2:
        have = ", ".join(map(str, found.counts)) or "none"
        raise UserError(
            f"a prediction needs runs at 2 or more worker counts, these have {have}"
            + (f"; left out: {'; '.join(found.left_out)}" if found.left_out else ""),
            hint="measure more, e.g. python -m mlbench.sweep workers=1,2,4",
        )
    if FIXED < _power(found.runs) < GROWING:
        raise UserError(
            "the batch an update neither stays the same nor grows with the workers",
            hint="predict from runs of one recipe",
        )
    if not any(run.reached for run in found.runs):
        raise UserError(
            "no run reached its goal, so there is no time to accuracy to predict", hint="set a goal"
        )
    return found


def from_records(records: Sequence[Record], *, title: str) -> Measurements:
    """Return the measurements in records of one experiment at several worker counts.

    Runs that shared CPUs, carry another caveat, failed or took no phase times are left out and named.
    Raises UserError where the records are of different experiments.
    """
    if not records:
        raise UserError(f"{title} has no finished run", hint="python -m mlbench.results list")
    left_out, kept = [], []
    for one in records:
        why = _reason_to_leave_out(one)
        if why:
            left_out.append(f"{one.run_id} ({one.workers} workers) {why}")
        else:
            kept.append(one)
    differing = unlike(kept)
    if differing:
        raise UserError(
            f"{title} mixes experiments: {'; '.join(differing)}",
            hint="choose one, e.g. task=logreg backend=gloo",
        )
    first = (kept or records)[0].experiment
    hardware = Hardware.model_validate(first["hardware"])
    return Measurements(
        title=title,
        task=first["task"]["name"],
        runs=tuple(map(_measured, kept)),
        hardware=hardware,
        precision=first["task"].get("precision", "fp32") if hardware.gpus else "fp32",
        gradient_bytes=kept[0].gradient_bytes if kept else None,
        left_out=tuple(left_out),
    )


def unlike(records: Sequence[Record]) -> list[str]:
    """Return the fields, but for workers and seed, in which the experiments differ, with their values.

    Of a group that differs in its name, e.g. two tasks, the name alone is returned.
    """
    told = [dict(series(one)) for one in records]
    found: dict[str, set[str]] = {}
    for name in sorted({name for one in told for name in one}):
        # What a run could not tell is no difference.
        values = {str(one.get(name)) for one in told if name in one or name not in TOLD}
        if len(values) > 1:
            found[name] = values
    groups = {name.removesuffix(".name") for name in found if name.endswith(".name")}
    kept = [n for n in found if n.endswith(".name") or n.split(".")[0] not in groups]
    return [f"{name} is {' and '.join(sorted(found[name]))}" for name in kept]


def _reason_to_leave_out(one: Record) -> str | None:
    if one.oversubscribed:
        return "had more workers than CPUs"
    if one.caveats:
        return f"has a caveat: {one.caveats[0]}"
    if one.status not in FITTED:
        return f"is {one.status.replace('_', ' ')}"
    if one.restarts:
        return "went on after a failure"
    if not one.phases or not one.steps:
        return "has no phase times"
    return None


def _measured(one: Record) -> Measured:
    phases = {name: spread.mean for name, spread in one.phases.items()}
    compute = math.fsum(phases[name] for name in ("forward", "loss", "backward"))
    communication = phases["communication"]
    if one.workers == 1:  # nothing is sent, so this is the end of backward
        compute, communication = compute + communication, 0.0
    overlapped = one.overlapped_communication
    return Measured(
        workers=one.workers,
        reached=one.status == "goal_reached",
        epochs=one.epochs,
        updates=one.steps,
        samples=one.samples,
        validations=len(one.validations),
        compute_s=compute,
        optimizer_s=phases["optimizer"],
        feeding_s=phases["data_wait"] + phases["metrics"],
        communication_s=communication,
        overlapped_s=overlapped.mean if overlapped and one.workers > 1 else 0.0,
        outside_s=max(0.0, one.validations[-1]["elapsed"] - math.fsum(phases.values())),
        startup_s=one.startup_time,
    )


def _power(runs: Sequence[Measured]) -> float:
    """Return p of global batch = const * workers ** p, between the fewest and the most workers."""
    ends = min(run.workers for run in runs), max(run.workers for run in runs)
    few, many = (median(run.batch for run in runs if run.workers == k) for k in ends)
    return math.log(many / few) / math.log(ends[1] / ends[0])

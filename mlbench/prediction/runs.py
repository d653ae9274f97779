"""What a prediction needs of a run: seconds of each phase, steps, samples and epochs.

From records of one experiment, or from the runs that MLBench published.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from mlbench.analysis.points import TOLD, series
from mlbench.analysis.published import Reference, load
from mlbench.experiment.config import Hardware, Price
from mlbench.experiment.errors import UserError
from mlbench.experiment.phases import exposed
from mlbench.experiment.record import Record

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
    - left_out: a sentence for each run that is not among `runs`.
    - notes: sentences about the source of the numbers.
    """

    title: str
    task: str
    runs: tuple[RunTimings, ...]
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
            "the batch of a step neither stays the same nor grows with the workers",
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
    hardware = first.hardware
    return Measurements(
        title=title,
        task=first.task.name,
        runs=tuple(map(_measured, kept)),
        hardware=hardware,
        precision=getattr(first.task, "precision", "fp32") if hardware.gpus else "fp32",
        gradient_bytes=kept[0].gradient_bytes if kept else None,
        left_out=tuple(left_out),
    )


def unlike(records: Sequence[Record]) -> list[str]:
    """Return the fields, but for workers and seed, in which the experiments differ, with their values.

    Of a group that differs in its name, e.g. two tasks, the name alone is returned.
    """
    fields = [dict(series(one)) for one in records]
    found: dict[str, set[str]] = {}
    for name in sorted({name for one in fields for name in one}):
        # What a run could not tell is no difference.
        values = {str(one.get(name)) for one in fields if name in one or name not in TOLD}
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


def _measured(one: Record) -> RunTimings:
    phases = {name: spread.mean for name, spread in one.phases.items()}
    compute = math.fsum(phases[name] for name in ("forward", "loss", "backward"))
    communication = exposed(phases)
    if one.workers == 1:  # nothing is sent, so this is the end of backward
        compute, communication = compute + communication, 0.0
    overlapped = one.overlapped_communication
    return RunTimings(
        workers=one.workers,
        reached=one.status == "goal_reached",
        epochs=one.epochs,
        steps=one.steps,
        samples=one.samples,
        validations=len(one.validations),
        compute_s=compute,
        optimizer_s=phases["optimizer"],
        data_wait_s=phases["data_wait"] + phases["metrics"],
        communication_s=communication,
        overlapped_s=overlapped.mean if overlapped and one.workers > 1 else 0.0,
        outside_s=max(0.0, one.validations[-1].elapsed - math.fsum(phases.values())),
        startup_s=one.startup_time,
    )


def _power(runs: Sequence[RunTimings]) -> float:
    """Return p of global batch = const * workers ** p, between the fewest and the most workers."""
    ends = min(run.workers for run in runs), max(run.workers for run in runs)
    few, many = (median(run.batch for run in runs if run.workers == k) for k in ends)
    return math.log(many / few) / math.log(ends[1] / ends[0])


@dataclass(frozen=True)
class PublishedTask:
    """What the table of published runs does not hold: data, batches and parameters of its tasks.

    - epoch_samples: None where the steps of an epoch were never published; an epoch then stands for a
      step, which changes the unit of the fitted values but no prediction.
    """

    epoch_samples: int | None
    batch: int
    batch_grows: bool  # whether `batch` is a worker's
    validations_an_epoch: int
    gradient_bytes: int


PUBLISHED_TASKS = {
    # Sentence pairs and parameters: MLBench's unpublished post. Its model, so its gradients, were float16.
    "gnmt": PublishedTask(3_975_116, 2048, False, 3, 160_671_297 * 2),
    "transformer": PublishedTask(None, 131_072, False, 4, 210_808_832 * 2),
    # Images: CIFAR-10. Parameters: those of the code of 2021, with projection shortcuts.
    "resnet20": PublishedTask(50_000, 128, True, 1, 272_474 * 4),
}


def published_runs(task: str, *, backend: str, profile: Hardware) -> Measurements:
    """Return the published runs of a task on a backend, at MLBench's prices of 2021.

    `profile` is the shape of their node, a T4 in an n1-standard-4. UserError for what was not published.
    """
    if task not in PUBLISHED_TASKS:
        raise UserError(
            f"no published runs of {task!r} to predict from", hint=f"choose from {', '.join(PUBLISHED_TASKS)}"
        )
    rows = [row for row in load(task, study="mlbench-2021-runs") if row.label == "all-reduce"]
    backends = sorted({str(row.backend) for row in rows} - {"all"})
    if backend not in backends:
        raise UserError(f"{task} was not published on {backend!r}", hint=f"choose from {', '.join(backends)}")
    chosen = [row for row in rows if row.backend in (backend, "all")]
    counts = sorted({row.workers for row in chosen if row.workers})
    shape = PUBLISHED_TASKS[task]
    fp16 = task != "resnet20"
    return Measurements(
        title=f"MLBench's published runs of {task} ({backend}, {chosen[0].software}, {chosen[0].date})",
        task=task,
        runs=tuple(_published_run(chosen, workers, shape) for workers in counts),
        hardware=profile.model_copy(update={"price": _price()}),
        precision="fp16" if fp16 else "fp32",
        gradient_bytes=shape.gradient_bytes if shape.epoch_samples else None,
        notes=(
            "times are MLBench's own: sums over batches, without validation and waits for data",
            "one run a worker count was published",
            *(() if shape.epoch_samples else ("an epoch stands for a step, whose number was not published",)),
        ),
    )


def _published_run(rows: list[Reference], workers: int, shape: PublishedTask) -> RunTimings:
    values = {row.metric: row.value for row in rows if row.workers == workers}
    epochs = epochs_to_goal(int(values["validations"]), a_epoch=shape.validations_an_epoch)
    batch = shape.batch * (workers if shape.batch_grows else 1)
    steps = epochs * shape.epoch_samples / batch if shape.epoch_samples else epochs
    compute = values["forward"] + values["loss"] + values["backward"]
    communication = values["communication"]
    rest = values["train_time"] - compute - values["optimizer"] - communication - values["metrics"]
    if workers == 1:  # nothing is sent, so this was waiting for the GPU
        compute, communication = compute + communication, 0.0
    return RunTimings(
        workers=workers,
        reached=True,
        epochs=epochs,
        steps=steps,
        samples=steps * batch,
        validations=int(values["validations"]),
        compute_s=compute,
        optimizer_s=values["optimizer"],
        data_wait_s=values["metrics"],
        communication_s=communication,
        overlapped_s=0.0,  # reduced after backward
        outside_s=rest,  # copies to the GPU and what no step covers
    )


def epochs_to_goal(validations: int, *, a_epoch: int) -> float:
    """Return the epochs after which the goal was met, from the number of logged validations.

    Translation validated after 30, 60 and 90 % of an epoch and at its end, and logged the last value twice;
    GNMT's ends of epochs were not counted as validations (3 an epoch), the Transformer's were (4).
    """
    if a_epoch == 1:
        return float(validations)
    whole, part = divmod(validations - 2, a_epoch)
    return whole + min(1.0, 0.3 * (part + 1))


def _price() -> Price:
    """Return what MLBench paid in 2021 for a node: the machine and its T4."""
    rows = [row for row in load(study="mlbench-prices") if row.date == "2021"]
    prices = {m: sum(row.value for row in rows if row.metric == m) for m in ("price", "spot_price")}
    return Price(
        usd_per_hour=prices["price"],
        usd_per_hour_spot=prices["spot_price"],
        date="2021-02-25",
        source="MLBench's published prices, n1-standard-4 and T4",
    )

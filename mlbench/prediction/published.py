"""The runs that MLBench published in 2021, as measurements to predict from."""

from dataclasses import dataclass

from mlbench.analysis.published import Reference, load
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware, Price
from mlbench.prediction.runs import Measurements, RunTimings


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
            "one run per worker count was published",
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
    GNMT's ends of epochs were not counted as validations (3 per epoch), the Transformer's were (4).
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

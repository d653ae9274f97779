"""Convert the runs that MLBench published in 2021 to the model's measurements."""

from collections.abc import Mapping
from typing import NamedTuple

from mlbench.analysis.published import load
from mlbench.config.errors import UserError
from mlbench.config.experiment import Price
from mlbench.plugins.prediction import processors
from mlbench.plugins.prediction.model import Measurements, RunTimings

HARDWARE = "gcp_n1_t4"  # the profile of the node of the published runs


class PublishedTask(NamedTuple):
    """Properties of a task that are missing in the table of published runs: data, batches and parameters."""

    epoch_samples: int | None  # None: not published; an epoch is then a step, which only changes units
    batch: int
    batch_grows: bool  # whether `batch` is a worker's
    validations_an_epoch: int
    gradient_bytes: int | None


TASKS = {
    # Sentence pairs and parameters: MLBench's unpublished post. Its model, so its gradients, were float16.
    "gnmt": PublishedTask(3_975_116, 2048, False, 3, 160_671_297 * 2),
    "transformer": PublishedTask(None, 131_072, False, 4, None),
    # Images: CIFAR-10. Parameters: those of the code of 2021, with projection shortcuts.
    "resnet20": PublishedTask(50_000, 128, True, 1, 272_474 * 4),
}


def measurements(task: str, *, backend: str = "nccl") -> Measurements:
    """Return the published runs of a task on a backend, at MLBench's prices of 2021, with one T4 a node."""
    if task not in TASKS:
        hint = f"choose from {', '.join(TASKS)}, mlperf, imported, or name a file or folder"
        raise UserError(f"no published runs of {task!r} to predict from", hint=hint)
    rows = [row for row in load(task, study="mlbench-2021-runs") if row.label == "all-reduce"]
    backends = sorted({str(row.backend) for row in rows} - {"all"})
    if backend not in backends:
        raise UserError(f"{task} was not published on {backend!r}", hint=f"choose from {', '.join(backends)}")
    values: dict[int, dict[str, float]] = {}
    for row in rows:
        if row.workers and row.backend in (backend, "all"):
            values.setdefault(row.workers, {})[row.metric] = row.value
    shape = TASKS[task]
    paid = [row for row in load(study="mlbench-prices") if row.date == "2021"]  # for the machine and its T4
    price = Price(
        usd_per_hour=sum(row.value for row in paid if row.metric == "price"),
        usd_per_hour_spot=sum(row.value for row in paid if row.metric == "spot_price"),
        date="2021-02-25",
        source="MLBench's published prices, n1-standard-4 and T4",
    )
    notes = ["times are MLBench's: sums over batches, without validation and waits for data"]
    notes += ["one run per worker count was published"]
    notes += (
        [] if shape.epoch_samples else ["an epoch counts as a step (the number of steps was not published)"]
    )
    return Measurements(
        title=f"MLBench's published runs of {task} ({backend}, {rows[0].software}, {rows[0].date})",
        task=task,
        runs=tuple(_run(values[k], k, shape) for k in sorted(values)),
        hardware=processors.profile(HARDWARE).model_copy(update={"price": price}),
        precision="fp32" if task == "resnet20" else "fp16",
        gradient_bytes=shape.gradient_bytes,
        backend=backend,
        notes=tuple(notes),
    )


def _run(values: Mapping[str, float], workers: int, shape: PublishedTask) -> RunTimings:
    # Translation validated after 30, 60 and 90 % of an epoch and at its end, and logged the last value twice.
    # GNMT's ends of epochs were not counted as validations (3 per epoch), the Transformer's were (4).
    epochs = validations = int(values["validations"])
    if shape.validations_an_epoch > 1:
        whole, part = divmod(validations - 2, shape.validations_an_epoch)
        epochs = whole + min(1.0, 0.3 * (part + 1))
    batch = shape.batch * (workers if shape.batch_grows else 1)
    steps = epochs * shape.epoch_samples / batch if shape.epoch_samples else epochs
    compute = values["forward"] + values["loss"] + values["backward"]
    communication = values["communication"]
    rest = values["train_time"] - compute - values["optimizer"] - communication - values["metrics"]
    if workers == 1:  # nothing is sent, so this time was a wait for the GPU
        compute, communication = compute + communication, 0.0
    return RunTimings(
        workers=workers,
        reached=True,
        epochs=epochs,
        steps=steps,
        samples=steps * batch,
        validations=validations,
        compute_s=compute,
        optimizer_s=values["optimizer"],
        data_wait_s=values["metrics"],
        communication_s=communication,
        overlapped_s=0.0,  # reduced after backward
        outside_s=rest,  # copies to the GPU and time outside the steps
    )

"""Task 1a: image classification with the CIFAR ResNets; small batches of convolutions, 1 MB of gradients."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from mlbench.experiment.config import NonNegativeFloat, PositiveFloat, PositiveInt, TrainingConfig
from mlbench.tasks.resnet20 import data

if TYPE_CHECKING:
    from mlbench.training.loop import Outcome
    from mlbench.training.worker import Worker

prepare = data.prepare_dataset


class Config(TrainingConfig):
    """What conf/task/resnet20.yaml holds beyond the fields of every training task."""

    depth: Literal[20, 32, 44, 56]
    variant: Literal["v1", "v2"]
    shortcut: Literal["projection", "identity"]
    width: PositiveInt
    rate: PositiveFloat
    warmup: Literal["log2"] | Annotated[int, Field(ge=0)]
    decay: Literal["plateau", "steps"]
    decay_factor: PositiveFloat
    decay_epochs: tuple[PositiveInt, ...]
    patience: PositiveInt
    momentum: NonNegativeFloat
    nesterov: bool
    weight_decay: NonNegativeFloat


def run(config: Config, worker: "Worker") -> "Outcome":
    """Train with SGD until the goal or the last epoch."""
    import torch
    import torch.nn.functional as F

    from mlbench.tasks.resnet20.augment import crop, draw, normalise
    from mlbench.tasks.resnet20.model import resnet
    from mlbench.training import sampling
    from mlbench.training.flops import training_flops
    from mlbench.training.loop import Parts, train

    found = data.open_dataset(prepare(config, worker.data_root))
    device = worker.device
    (images, labels), (test_images, test_labels) = found.train, found.test

    def load() -> None:
        nonlocal images, labels, test_images, test_labels
        images, labels = (tensor.to(device) for tensor in found.train)
        test_images, test_labels = (tensor.to(device) for tensor in found.test)

    normalised = partial(normalise, mean=found.mean.to(device), std=found.std.to(device))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(worker.seed)  # the same start on every rank
        model = resnet(config.depth, variant=config.variant, shortcut=config.shortcut, width=config.width).to(
            device
        )
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config.rate,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=True,
    )
    per_epoch = len(labels) // (config.batch_size * worker.world_size)
    schedule = _schedule(config, optimizer, workers=worker.world_size, per_epoch=per_epoch)

    def updates(epoch: int) -> sampling.RowUpdates:
        rows = sampling.shuffled_rows(len(labels), batch=config.batch_size, epoch=epoch, worker=worker)
        # Drawn for the whole global batch on every rank, so an image's crop does not depend on k.
        crops = worker.generator(epoch, 1)
        width = config.batch_size * worker.world_size
        own = slice(worker.rank * config.batch_size, (worker.rank + 1) * config.batch_size)

        def fetch(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            drawn = (each[own] for each in draw(width, flip=found.flip, generator=crops))
            return normalised(crop(images.index_select(0, chosen), *drawn)), labels.index_select(0, chosen)

        return sampling.RowUpdates(rows, fetch)

    def validate(trained: torch.nn.Module) -> dict[str, float]:
        part = sampling.share(len(test_labels), worker)
        totals = torch.zeros(3, dtype=torch.float64, device=device)
        for begin in range(part.start, part.stop, VALIDATION_BATCH):
            rows = slice(begin, min(begin + VALIDATION_BATCH, part.stop))
            logits = trained(normalised(test_images[rows]))
            answers = test_labels[rows]
            totals[0] += F.cross_entropy(logits, answers, reduction="sum")
            totals[1] += (logits.argmax(1) == answers).sum()
            totals[2] += len(answers)
        loss, correct, count = worker.sum(totals).tolist()
        return {"top1_accuracy": 100 * correct / count, "loss": loss / count}

    outcome = train(
        Parts(
            model=model,
            optimizer=optimizer,
            epochs=config.epochs,
            updates=updates,
            forward=lambda net, batch: net(batch[0]),
            loss=lambda logits, batch: F.cross_entropy(logits, batch[1]),
            validate=validate,
            samples=lambda batch: len(batch[1]),
            load=load,
            before_update=schedule.before_update,
            after_validation=schedule.after_validation,
            stateful={"schedule": schedule},
        ),
        worker,
    )
    outcome.unit = "images"
    outcome.flops_per_sample = training_flops(
        model, [normalised(images[:1])], lambda logits: F.cross_entropy(logits, labels[:1].to(logits.device))
    )
    return outcome


VALIDATION_BATCH = 500  # images; bounds memory, changes no result


def _schedule(config: Config, optimizer, *, workers: int, per_epoch: int):
    """Return warm-up from rate to rate * k, then the recipe's decay."""
    from mlbench.training import schedules

    epochs = schedules.warmup_epochs(workers) if config.warmup == "log2" else config.warmup
    factor = schedules.linear_warmup(workers, epochs * per_epoch)
    if config.decay == "steps":
        at = [epoch * per_epoch for epoch in config.decay_epochs]
        return schedules.Schedule(
            optimizer, schedules.product(factor, schedules.steps(config.decay_factor, at))
        )
    plateau = schedules.Plateau(config.decay_factor, config.patience, start=epochs * per_epoch)
    return schedules.Schedule(optimizer, factor, plateau=plateau)

"""The CIFAR ResNets with SGD until the goal or the last epoch."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlbench.tasks.pixels import memory_format, normaliser
from mlbench.tasks.resnet20 import Config, data
from mlbench.tasks.resnet20.augment import crop, draw
from mlbench.tasks.resnet20.model import resnet
from mlbench.training import precision, sampling, schedules
from mlbench.training.flops import training_flops
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker

VALIDATION_BATCH = 500  # images. Bounds memory, changes no result


def build(config: Config, worker: Worker) -> TrainingSetup:
    """Return what the loop trains."""
    files = data.open_dataset(data.prepare_dataset(config, worker.data_root))
    device = worker.device
    layout = memory_format(device, config.precision or "fp32", channels=config.width)
    normalise = normaliser(
        data.SIDE, mean=files.mean.tolist(), std=files.std.tolist(), device=device, memory_format=layout
    )
    torch.backends.cudnn.benchmark = device.type == "cuda"  # all batches of a kind have one shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(worker.seed)  # the same start on every rank
        model = resnet(config.depth, variant=config.variant, shortcut=config.shortcut, width=config.width)
    model = model.to(device)
    model.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stub has not got it
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        fused=True,
    )
    mixed = precision.on_device(config.precision, device)
    if mixed.scaler is not None:
        precision.fill_momentum(optimizer)
    count = len(files.train.labels)
    global_batch = config.batch_size * worker.world_size
    schedule = _schedule(config, optimizer, workers=worker.world_size, per_epoch=count // global_batch)

    def load() -> data.ImageSplits:
        train, test = (
            data.Images(images.to(device), labels.to(device)) for images, labels in (files.train, files.test)
        )
        return replace(files, train=train, test=test)  # on the device

    def steps(splits: data.ImageSplits, epoch: int) -> sampling.BatchIterator:
        images, labels = splits.train
        rows = sampling.shuffled_rows(count, batch=config.batch_size, epoch=epoch, worker=worker)
        # Drawn for the whole global batch on every rank, so an image's crop does not depend on k.
        crops = worker.generator(epoch, 1)
        own = slice(worker.rank * config.batch_size, (worker.rank + 1) * config.batch_size)

        def fetch(chosen: Tensor) -> tuple[Tensor, Tensor]:
            top, left, mirrored = draw(global_batch, flip=files.flip, generator=crops)
            mirrored = None if mirrored is None else mirrored[own]
            cut = crop(images.index_select(0, chosen), top[own], left[own], mirrored)
            return normalise(cut), labels.index_select(0, chosen)

        return sampling.BatchIterator(rows, fetch)

    def validate(trained: nn.Module, splits: data.ImageSplits) -> dict[str, float]:
        images, labels = splits.test
        part = sampling.shard(len(labels), worker)
        totals = torch.zeros(3, dtype=torch.float64, device=device)
        for begin in range(part.start, part.stop, VALIDATION_BATCH):
            rows = slice(begin, min(begin + VALIDATION_BATCH, part.stop))
            logits = trained(normalise(images[rows].permute(0, 2, 3, 1)))
            totals[0] += F.cross_entropy(logits, labels[rows], reduction="sum")
            totals[1] += (logits.argmax(1) == labels[rows]).sum()
            totals[2] += len(labels[rows])
        loss, correct, count = worker.sum(totals).tolist()
        return {"top1_accuracy": 100 * correct / count, "loss": loss / count, **mixed.metrics()}

    def flops_per_sample(splits: data.ImageSplits) -> float:
        images, labels = splits.train
        return training_flops(
            model,
            [normalise(images[:1].permute(0, 2, 3, 1))],
            lambda logits: F.cross_entropy(logits, labels[:1].to(logits.device)),
        )

    return TrainingSetup(
        model=model,
        optimizer=optimizer,
        epochs=config.epochs,
        load=load,
        steps=steps,
        forward=lambda net, batch: net(batch[0]),
        loss=lambda logits, batch: F.cross_entropy(logits, batch[1]),
        validate=validate,
        samples=lambda batch: len(batch[1]),
        sample_unit="images",
        before_step=schedule.before_step,
        after_validation=schedule.after_validation,
        autocast=mixed.autocast,
        scaler=mixed.scaler,
        one_shape=config.ONE_SHAPE,
        stateful={"schedule": schedule},
        flops_per_sample=flops_per_sample,
    )


def _schedule(
    config: Config, optimizer: torch.optim.Optimizer, *, workers: int, per_epoch: int
) -> schedules.Schedule:
    """Return warm-up from lr to lr * k, then the recipe's decay."""
    epochs = schedules.warmup_epochs(workers) if config.warmup_epochs == "log2" else config.warmup_epochs
    factor = schedules.linear_warmup(workers, epochs * per_epoch)
    if config.decay == "steps":
        at = [epoch * per_epoch for epoch in sorted(config.decay_epochs)]
        return schedules.Schedule(
            optimizer, schedules.product(factor, schedules.step_decay(config.decay_factor, at))
        )
    plateau = schedules.Plateau(config.decay_factor, config.patience, start=epochs * per_epoch)
    return schedules.Schedule(optimizer, factor, plateau=plateau)

"""ResNet-50 with SGD until the goal or the last epoch. Then decoding alone is timed for the table."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlbench.tasks.pixels import memory_format, normaliser
from mlbench.tasks.resnet50 import RATE_SAMPLES, Config, batches, data, decode, model
from mlbench.tasks.steps import EpochSteps
from mlbench.tasks.weight_decay import parameter_groups
from mlbench.training import precision, sampling, schedules
from mlbench.training.copies import CopyStream
from mlbench.training.flops import training_flops
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker

# Mean and deviation of ImageNet's training pixels in 0..1, as torchvision 0.28 has them.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
VALIDATION_BATCH = 250  # images. Bounds memory, changes no result
TIMED_IMAGES = 256  # whose decoding is timed once the run is over
TIMED_REPEATS = 3  # of which the fastest counts: what else the machine does only adds


def build(config: Config, worker: Worker) -> TrainingSetup:
    """Return what the loop trains. Processes that decode live until `close`."""
    files = data.open_dataset(data.prepare_dataset(config, worker.data_root))
    decoder = decode.ImageDecoder(
        files, crop=config.crop, resize=config.resize, min_crop_area=config.min_crop_area
    )
    cuda = worker.device.type == "cuda"
    # On a GPU the worker's CPU threads have nothing else to do. Without one they compute.
    processes = config.dataloader_workers
    if processes is None:
        processes = torch.get_num_threads() if cuda else 1
    batch, micro = batches(config, worker.world_size)
    torch.backends.cudnn.benchmark = cuda  # all batches have one shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(worker.seed)  # the same start on every rank
        net = model.resnet(stage_blocks=config.stage_blocks, width=config.width, classes=len(files.classes))
    net = net.to(worker.device)
    layout = memory_format(worker.device, config.precision or "fp32", channels=model.EXPANSION * config.width)
    net.to(memory_format=layout)  # type: ignore[call-overload]  # torch's stub has not got it
    optimizer = torch.optim.SGD(
        parameter_groups(net, config.weight_decay),
        lr=config.lr * batch * worker.world_size / RATE_SAMPLES,
        momentum=config.momentum,
        fused=True,
    )
    per_epoch = len(files.train) // (batch * worker.world_size)
    factor = schedules.warmup_cosine(config.warmup_epochs * per_epoch, config.epochs * per_epoch)
    mixed = precision.on_device(
        config.precision, worker.device, scale=config.loss_scale, window=config.loss_scale_window
    )
    if mixed.scaler is not None:
        precision.fill_momentum(optimizer)

    normalise = normaliser(config.crop, mean=MEAN, std=STD, device=worker.device, memory_format=layout)

    to_device = CopyStream(worker.device)

    def on_device(pixels: decode.Pixels) -> tuple[Tensor, Tensor]:
        if not cuda:
            return pixels.images.clone(), pixels.labels
        return to_device(pixels.images), to_device(pixels.labels)

    def steps(_: Any, epoch: int) -> EpochSteps:
        tasks = decode.training_tasks(len(files.train), batch=batch, micro=micro, epoch=epoch, worker=worker)
        return decode.epoch_steps(loader, tasks, per_step=batch // micro, on_device=on_device)

    def loss(logits: Tensor, pixels: tuple[Tensor, Tensor]) -> Tensor:
        total = F.cross_entropy(logits, pixels[1], reduction="sum", label_smoothing=config.label_smoothing)
        return total / batch  # micro-batches add up to the mean over the step

    def validate(trained: nn.Module, _: Any) -> dict[str, float]:
        totals = torch.zeros(4, dtype=torch.float64, device=worker.device)
        tasks = decode.validation_tasks(len(files.val), batch=VALIDATION_BATCH, worker=worker)
        for images, labels in map(on_device, loader.batches(tasks)):
            logits = trained(normalise(images)).double()  # the sum over all images then hides no rounding
            ranked = logits.topk(min(5, len(files.classes))).indices == labels[:, None]
            totals[0] += F.cross_entropy(logits, labels, reduction="sum")
            totals[1] += ranked[:, 0].sum()
            totals[2] += ranked.sum()
            totals[3] += len(labels)
        entropy, first, five, count = worker.sum(totals).tolist()
        return {
            "top1_accuracy": 100 * first / count,
            "top5_accuracy": 100 * five / count,
            "loss": entropy / count,
            **mixed.metrics(),
        }

    def flops_per_sample(_: Any) -> float:
        pair = torch.empty(2, 3, config.crop, config.crop, device="meta")  # batch norm refuses one value
        return training_flops(net, [pair], lambda logits: logits.sum())

    def table(_: Any) -> list[dict[str, Any]]:
        loader.close()  # so that nothing else computes
        return decoding(decoder, worker, processes=processes)

    loader = decode.Loader(decoder, processes=processes, largest=max(micro, VALIDATION_BATCH))
    return TrainingSetup(
        model=net,
        optimizer=optimizer,
        epochs=config.epochs,
        load=lambda: (files.train.labels, files.val.labels),  # images come batch by batch
        steps=steps,
        forward=lambda net, pixels: net(normalise(pixels[0])),
        loss=loss,
        validate=validate,
        samples=lambda pixels: len(pixels[1]),
        sample_unit="images",
        before_step=schedules.Schedule(optimizer, factor).before_step,
        autocast=mixed.autocast,
        scaler=mixed.scaler,
        one_shape=config.ONE_SHAPE,
        flops_per_sample=flops_per_sample,
        table=table,
        close=loader.close,
    )


def decoding(decoder: decode.ImageDecoder, worker: Worker, *, processes: int) -> list[dict[str, Any]]:
    """Return how fast one process of each rank decodes and augments training images, with nothing else to do.

    All ranks decode at the same time, each from the beginning of its share.
    """
    rows = sampling.shard(len(decoder.splits["train"]), worker)[:TIMED_IMAGES]
    task = decode.DecodeTask("train", rows=list(rows), key=worker.seed)
    pixels = np.empty((len(rows), decoder.crop, decoder.crop, 3), np.uint8)
    seconds = worker.timer.benchmark(
        lambda: decoder.decode(task, pixels), TIMED_REPEATS, barrier=worker.barrier
    )
    own = {"kind": "decoding", "rank": worker.rank, "images": len(rows), "processes": processes}
    return worker.gather(own | {"images_per_s_per_process": len(rows) / min(seconds)})

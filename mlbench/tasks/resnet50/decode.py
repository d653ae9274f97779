"""Decode JPEG bytes to batches of pixels, ahead of the training, in separate processes.

Pillow decodes. It reads every format and colour space that ImageNet has under the name .JPEG, and its wheel
brings libjpeg-turbo. simplejpeg, the leaner binding of the same library, took 0.93 to 0.98 of its CPU time
for decoding, cropping and resizing (2026-11-21). That saves too little for one more dependency.
"""

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from mlbench.tasks.resnet50 import crops
from mlbench.tasks.resnet50.data import ImageNetSplits
from mlbench.tasks.steps import EpochSteps
from mlbench.training import sampling
from mlbench.training.worker import Worker

PREFETCH = 2  # batches a process decodes before they are requested


class DecodeTask(NamedTuple):
    """A batch to decode: `rows` of a split, with a `key` cropped at random, without one for validation."""

    split: str
    rows: list[int]
    key: int | None = None


class Pixels(NamedTuple):
    """uint8 [n, crop, crop, 3] and int64 [n]."""

    images: Tensor
    labels: Tensor


class ImageDecoder:
    """Decodes, crops and resizes the images of a task."""

    def __init__(self, dataset: ImageNetSplits, *, crop: int, resize: int, min_crop_area: float) -> None:
        self.splits = {"train": dataset.train, "val": dataset.val}
        self.crop, self.resize, self.min_crop_area = crop, resize, min_crop_area

    def decode(self, task: DecodeTask, pixels: np.ndarray) -> None:
        """Write the task's images into `pixels`, uint8 [n, crop, crop, 3]."""
        split = self.splits[task.split]
        if task.key is None:
            for index, row in enumerate(task.rows):
                pixels[index] = self.centre(_opened(split.encoded(row)))
            return
        rows = np.asarray(task.rows, np.int64)
        numbers = crops.uniform(task.key, rows, crops.DRAWS)
        heights, widths = split.heights[rows], split.widths[rows]
        boxes, mirrored = crops.draw(numbers, heights, widths, min_crop_area=self.min_crop_area)
        for index, (row, box) in enumerate(zip(task.rows, boxes.tolist(), strict=True)):
            cut = _opened(split.encoded(row)).crop(box)
            image = np.asarray(cut.resize((self.crop, self.crop), Image.Resampling.BILINEAR))
            pixels[index] = image[:, ::-1] if mirrored[index] else image

    def centre(self, image: Image.Image) -> np.ndarray:
        """Return the centre crop of an image whose shorter side is brought to `resize` pixels."""
        # The other side is cut to a whole number, as in torchvision's Resize.
        size = [int(self.resize * side / min(image.size)) for side in image.size]
        resized = image.resize(size, Image.Resampling.BILINEAR)
        left, top = (round((side - self.crop) / 2) for side in size)
        return np.asarray(resized.crop((left, top, left + self.crop, top + self.crop)))


def _opened(encoded: bytes) -> Image.Image:
    image = Image.open(BytesIO(encoded))
    return image if image.mode == "RGB" else image.convert("RGB")


class Loader:
    """Gives the batches of tasks in order, decoded ahead by `processes` that live until `close`.

    Processes write into a ring of batches of `largest` images, in memory that they share with this one.
    DataLoader's tensors are in /dev/shm, of which a container has little, and take more CPU time
    (docs/measurements/performance.md). They are forked, which takes milliseconds, and run NumPy and Pillow
    alone, which start no threads. With 0 processes a batch is decoded when its turn comes.
    """

    def __init__(self, decoder: ImageDecoder, *, processes: int, largest: int) -> None:
        self._decoder = decoder
        self._tasks: list[tuple[int, DecodeTask]] = []
        # One more than there can be under way: the one that was given last is still being read.
        shape = (PREFETCH * processes + 1, largest, decoder.crop, decoder.crop, 3)
        self._ring = np.frombuffer(mmap.mmap(-1, math.prod(shape)), np.uint8).reshape(shape)
        self._loader: DataLoader | None = DataLoader(
            SharedBuffer(decoder, self._ring),
            sampler=self._tasks,
            batch_size=None,  # a task is a whole batch
            num_workers=processes,
            prefetch_factor=PREFETCH if processes else None,
            persistent_workers=processes > 0,
            multiprocessing_context="fork" if processes else None,
            generator=torch.Generator(),  # or every epoch would draw from the process's generator
        )
        iter(self._loader)  # the processes start now, not at the first access to data

    def batches(self, tasks: Sequence[DecodeTask]) -> Iterator[Pixels]:
        """Yield the batch of each task, images valid until the next is requested."""
        assert self._loader is not None, "closed"
        self._tasks[:] = [(index % len(self._ring), task) for index, task in enumerate(tasks)]
        # Not one `next` more than there are tasks: it would be requested after the next call of `batches`.
        for task, slot in zip(tasks, islice(iter(self._loader), len(tasks)), strict=True):
            images = torch.from_numpy(self._ring[slot, : len(task.rows)])
            yield Pixels(images, torch.from_numpy(self._decoder.splits[task.split].labels[task.rows]))

    def close(self) -> None:
        """End the processes."""
        self._loader = None


class SharedBuffer(torch.utils.data.Dataset):
    """Batches by their place in the ring and their task, as a DataLoader without batching requests them."""

    def __init__(self, decoder: ImageDecoder, ring: np.ndarray) -> None:
        self.decoder, self.ring = decoder, ring

    def __getitem__(self, index: tuple[int, DecodeTask]) -> int:
        slot, task = index
        self.decoder.decode(task, self.ring[slot, : len(task.rows)])
        return slot


def epoch_steps(
    loader: Loader, tasks: list[DecodeTask], *, per_step: int, on_device: Callable[[Pixels], Any]
) -> EpochSteps:
    """Return one epoch of steps, each of `per_step` batches of the loader, copied by `on_device`."""
    count = len(tasks) // per_step

    def make() -> Iterator[list[Any]]:
        batches = map(on_device, loader.batches(tasks))
        return (list(islice(batches, per_step)) for _ in range(count))

    return EpochSteps(count, make)


def training_tasks(count: int, *, batch: int, micro: int, epoch: int, worker: Worker) -> list[DecodeTask]:
    """Return this rank's micro-batches of an epoch: shuffled rows, crops that seed, epoch and row fix."""
    rows = sampling.shuffled_rows(count, batch=batch, epoch=epoch, worker=worker)
    key = worker.generator(epoch, 0).initial_seed()
    return [DecodeTask("train", part, key) for part in rows.reshape(-1, micro).tolist()]


def validation_tasks(count: int, *, batch: int, worker: Worker) -> list[DecodeTask]:
    """Return this rank's share of the validation images in order. The last task may be smaller."""
    part = sampling.shard(count, worker)
    return [DecodeTask("val", list(part[begin : begin + batch])) for begin in range(0, len(part), batch)]

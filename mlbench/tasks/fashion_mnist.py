"""Fashion-MNIST, 70,000 grey images of clothes in ten classes (Xiao et al. 2017, arXiv:1708.07747)."""

import gzip

import numpy as np

from mlbench.config.errors import UserError
from mlbench.datasets import packages
from mlbench.datasets.arrow import DatasetWriter

PACKAGE = packages.debian(
    "dataset-fashion-mnist",
    "0.0~git20200523.55506a9-1",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    sha1="08712481535c182683c7803e3f9b81fd8773e695",
    size=30_900_652,  # bytes
)
ORIGIN = {
    "source": "Fashion-MNIST (Xiao et al. 2017, https://github.com/zalandoresearch/fashion-mnist), "
    "Debian package dataset-fashion-mnist 0.0~git20200523.55506a9-1",
    "licence": "MIT",
    "attribution": "Copyright 2017 Zalando SE",
}
SIDE = 28  # pixels
SPLITS = {"train": "train", "test": "t10k"}  # the publisher's, by the names of its files
CLASSES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def read(writer: DatasetWriter) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Fetch the package and return by split images [n, 28, 28] and labels [n] of 0..9, both uint8."""
    package = writer.fetch(PACKAGE)
    content = dict(packages.files(package, below="usr/share/datasets/fashion-mnist"))
    splits = {}
    for split, name in SPLITS.items():
        images = idx(gzip.decompress(content[f"{name}-images-idx3-ubyte.gz"]))
        labels = idx(gzip.decompress(content[f"{name}-labels-idx1-ubyte.gz"]))
        if images.shape != (len(labels), SIDE, SIDE) or labels.max() >= len(CLASSES):
            raise UserError(f"{package} does not hold Fashion-MNIST", hint="remove it and download it again")
        splits[split] = images, labels
    return splits


def idx(content: bytes) -> np.ndarray:
    """Return the array of bytes that an IDX file holds.

    The file has two zeros, 8 for unsigned bytes, and the number of dimensions. Each of them follows as 4
    bytes (big-endian), then the values: http://yann.lecun.com/exdb/mnist/. Raises ValueError for anything
    else.
    """
    if content[:3] != b"\0\0\x08":
        raise ValueError("it is not an IDX file of bytes")
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)

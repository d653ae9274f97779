"""Rows and labels for logistic regression: epsilon, generated ones like it, or a user's files."""

import hashlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from mlbench.errors import UserError
from mlbench.tasks.common import arrow
from mlbench.tasks.common.arrow import Draft, Progress
from mlbench.tasks.common.download import Archive, fetch

if TYPE_CHECKING:  # torch is imported by the workers alone; preparing needs none of it
    from torch import Tensor


class Rows(NamedTuple):
    """Features [n, features] float32 and labels [n] float32 in {0, 1}, mapped from the file."""

    features: "Tensor"
    labels: "Tensor"


def prepare_dataset(config: Any, root: Path, *, progress: Progress | None = None) -> Path:
    """Make the data set that `config` names unless it is there, and return its folder.

    `config` has `dataset`, "epsilon" or "epsilon_like", and `train_file` and `test_file`, which take
    its place when they are given.
    """
    if config.train_file or config.test_file:
        return _prepare_files(config.train_file, config.test_file, root, progress=progress)
    if config.dataset == "epsilon_like":
        return arrow.write_dataset(root / config.dataset, _fill_epsilon_like, manifest=EPSILON_LIKE)
    assert config.dataset == "epsilon", config.dataset
    fill = partial(_fill_epsilon, root=root, progress=progress)
    return arrow.write_dataset(root / config.dataset, fill, manifest=_epsilon_manifest())


def open_dataset(folder: Path) -> tuple[Rows, Rows]:
    """Return the train and the test rows of a prepared data set as read-only views of its files.

    Writing into them in place ends the process; index or slice them into a batch instead.
    """
    train, test = (_open_split(folder, split) for split in ("train", "test"))
    return train, test


def _open_split(folder: Path, split: str) -> Rows:
    table = arrow.read_split(folder, split)
    return Rows(arrow.tensor(table, "features"), arrow.tensor(table, "label"))


def _batch(features: np.ndarray, ones: np.ndarray) -> pa.RecordBatch:
    return arrow.record_batch({"features": features, "label": ones.astype(np.float32)})


LIBSVM_PAGES = (  # the LIBSVM data page and the same department's second host
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
    "https://ntucsu.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",
)
# The page gives no checksums; these are the ones that scikit-learn_bench pins (read 2026-11-21).
EPSILON_SHA256 = {
    "epsilon_normalized.bz2": "aff916d4f97f18d286558ca088d2a9f7e1fcee9376539a5aa6ef5b7ef9dfa978",
    "epsilon_normalized.t.bz2": "cb299295ad11e200696eaa3050f5d8cf700eaa9c65e6aa859bda959f8669458b",
}
EPSILON = {
    split: Archive(tuple(page + file for page in LIBSVM_PAGES), file, sha256=EPSILON_SHA256[file])
    for split, file in (("train", "epsilon_normalized.bz2"), ("test", "epsilon_normalized.t.bz2"))
}
EPSILON_FEATURES = 2_000  # as the data page says; it also says 400,000 and 100,000 rows


def _epsilon_manifest() -> dict[str, Any]:
    return {
        "name": "epsilon",
        "source": "Pascal Large Scale Learning Challenge 2008, scaled; LIBSVM data page",
        "licence": "not stated by its publishers; free for research",
        "parameters": {split: archive.sha256 for split, archive in EPSILON.items()},
    }


def _fill_epsilon(draft: Draft, *, root: Path, progress: Progress | None) -> None:
    """Stream both archives, 12 GB as text, into splits; bounded by the decompression of bzip2."""
    paths = {}
    for split, archive in EPSILON.items():
        report = progress and partial(_report, progress, f"fetch {archive.file}")
        paths[split] = fetch(archive, root, progress=report)
        draft.add_input(paths[split])
    for split, path in paths.items():
        shape = _Shape({-1.0: None, 1.0: None}, first=1, features=EPSILON_FEATURES)
        draft.write(split, _batches(path, shape, progress=progress))


class _Shape:
    """What must be known before sparse text becomes dense rows: the labels and the columns."""

    def __init__(self, labels: dict[float, None], *, first: int, features: int) -> None:
        self.labels = labels
        self.first = first
        self.features = features


def _report(progress: Progress, step: str, done: int, total: int | None) -> None:
    progress(step, done, total, "bytes")

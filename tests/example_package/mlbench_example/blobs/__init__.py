"""A task: two Gaussian clouds, told apart by a line."""

from functools import partial
from pathlib import Path

import numpy as np

from mlbench.config.experiment import PositiveFloat, PositiveInt, TrainingConfig
from mlbench.datasets import arrow
from mlbench.datasets.arrow import DatasetWriter, Progress

DISTANCE = 4.0  # standard deviations between the centres
TEST_ROWS = 2000


class Config(TrainingConfig):
    """What conf/task/blobs.yaml holds beyond the fields of every training task."""

    rows: PositiveInt
    lr: PositiveFloat


def prepare(config: Config, root: Path, *, progress: Progress | None = None) -> Path:
    """Make the data set below `root` once, and return its folder."""
    manifest = {"name": "blobs", "source": "generated", "licence": "CC0", "train_rows": config.rows}
    write = partial(_write, rows=config.rows)
    return arrow.write_dataset(root / config.dataset, write, manifest=manifest, progress=progress)


def _write(writer: DatasetWriter, rows: int) -> None:
    for split, seed, count in (("train", 1, rows), ("test", 2, TEST_ROWS)):
        random = np.random.default_rng(seed)
        labels = random.integers(0, 2, count).astype(np.float32)
        points = random.standard_normal((count, 2), dtype=np.float32)
        points[:, 0] += DISTANCE * (labels - 0.5)
        writer.write(split, [arrow.record_batch({"points": points, "labels": labels})])

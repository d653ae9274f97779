"""Task 2a: L2-regularised logistic regression. Convex, tiny steps, bound by latency."""

from pathlib import Path
from typing import Literal

from mlbench.config.experiment import NonNegativeFloat, PositiveFloat, PositiveInt, TrainingConfig
from mlbench.tasks.logreg import data

prepare = data.prepare_dataset


class Config(TrainingConfig):
    """What conf/task/logreg.yaml holds beyond the fields of every training task."""

    CLASSES = 2
    FREE = ("precision",)
    ONE_SHAPE = True
    PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
    OWN_DATA = ("train_file", "test_file")
    DATA_FIELDS = ("validation",)

    train_file: Path | None
    test_file: Path | None
    validation: Literal["test", "split"]
    lr: PositiveFloat
    schedule: Literal["plateau", "sqrt"]
    decay_factor: PositiveFloat
    patience: PositiveInt
    alpha: PositiveFloat | None
    l2: NonNegativeFloat

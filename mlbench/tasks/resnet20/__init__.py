"""Task 1a: image classification with the CIFAR ResNets. Small batches of convolutions, 1 MB of gradients."""

from typing import Annotated, Literal

from pydantic import Field

from mlbench.config.experiment import NonNegativeFloat, PositiveFloat, PositiveInt, TrainingConfig
from mlbench.tasks.resnet20 import data

prepare = data.prepare_dataset


class Config(TrainingConfig):
    """What conf/task/resnet20.yaml holds beyond the fields of every training task."""

    CLASSES = 10
    FREE = ("precision",)
    ONE_SHAPE = True
    PRECISIONS = ("fp32", "tf32", "bf16", "fp16")

    depth: Literal[20, 32, 44, 56]
    variant: Literal["v1", "v2"]
    shortcut: Literal["projection", "identity"]
    width: PositiveInt
    lr: PositiveFloat
    warmup_epochs: Literal["log2"] | Annotated[int, Field(ge=0)]
    decay: Literal["plateau", "steps"]
    decay_factor: PositiveFloat
    decay_epochs: tuple[PositiveInt, ...]
    patience: PositiveInt
    momentum: NonNegativeFloat
    nesterov: bool
    weight_decay: NonNegativeFloat

"""Task 3a: language modelling with the AWD-LSTM; recurrent, with a large word matrix and long gradients."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from mlbench.config.experiment import (
    LSTM_CPU_ONLY,
    FrozenModel,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    TrainingConfig,
)
from mlbench.tasks.awdlstm import data

prepare = data.prepare_dataset
Probability = Annotated[float, Field(ge=0, lt=1)]


class Dropouts(FrozenModel):
    """Probabilities of dropping: units of the output, between layers, of the input; words; weights."""

    output: Probability
    hidden: Probability
    input: Probability
    embedding: Probability
    recurrent: Probability


class Config(TrainingConfig):
    """What conf/task/awdlstm.yaml holds beyond the fields of every training task."""

    FREE = ("precision",)
    PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
    CPU_ONLY = LSTM_CPU_ONLY
    OWN_DATA = ("train_file", "valid_file")
    DATA_FIELDS = ("min_count",)

    train_file: Path | None
    valid_file: Path | None
    min_count: PositiveInt
    embedding: PositiveInt
    hidden: PositiveInt
    layers: PositiveInt
    dropouts: Dropouts
    bptt: PositiveInt
    validation_columns: PositiveInt
    lr: PositiveFloat
    warmup_epochs: NonNegativeFloat
    weight_decay: NonNegativeFloat
    max_grad_norm: PositiveFloat
    ar: NonNegativeFloat
    tar: NonNegativeFloat
    patience: PositiveInt

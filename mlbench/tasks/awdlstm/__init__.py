"""Task 3a: language modelling with the AWD-LSTM. Recurrent, with a large word matrix and long gradients."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from mlbench.config.errors import UserError
from mlbench.config.experiment import (
    LSTM_CPU_ONLY,
    FrozenModel,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    TrainingConfig,
)
from mlbench.datasets import arrow
from mlbench.tasks.awdlstm import data

prepare = data.prepare_dataset
SHORTEST = 5  # tokens of a column, and of a chunk (Merity et al. 2017, section 4.1)
Probability = Annotated[float, Field(ge=0, lt=1)]


class Dropouts(FrozenModel):
    """Probabilities of dropping: units of the output, between layers, of the input, words, and weights."""

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


def check(config: Config, *, workers: int, folder: Path | None) -> None:
    """Raise UserError if the training text is too short for the columns of all workers."""
    if folder is not None:
        tokens = arrow.read_manifest(folder)["splits"]["train"]["rows"]
    elif config.train_file is None:
        tokens = data.TRAIN_TOKENS.get(config.dataset)
    else:
        tokens = None
    if tokens is not None:
        column_tokens(tokens, workers=workers, each=config.batch_size)


def column_tokens(tokens: int, *, workers: int, each: int) -> int:
    """Return the tokens of a column if every worker has `each` columns of the text.

    Raises UserError if they are fewer than SHORTEST.
    """
    length = (tokens - 1) // (workers * each)
    if length < SHORTEST:
        raise UserError(
            f"{workers} workers x {each} columns leave {length} tokens each, at least {SHORTEST} are needed",
            hint="use fewer workers, fewer columns (task.batch_size) or a longer text",
        )
    return length

"""Task 5: language modelling with a decoder-only Transformer, GPT-2; large products, 498 MB of gradients."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from mlbench.config.errors import UserError
from mlbench.config.experiment import NonNegativeFloat, PositiveFloat, PositiveInt, TrainingConfig
from mlbench.tasks.gpt import data

prepare = data.prepare_dataset
Share = Annotated[float, Field(ge=0, lt=1)]


class Config(TrainingConfig):
    """What conf/task/gpt.yaml holds beyond the fields of every training task.

    `batch_size` is the most sequences that a worker computes at a time. As nothing in the model looks across
    sequences and there is no dropout, it changes speed and memory alone.
    """

    FREE = ("precision", "batch_size", "activation_checkpointing")
    PRECISIONS = ("fp32", "tf32", "bf16")
    RECIPE_PRECISION = {"cpu": "fp32", "cuda": "bf16"}

    layers: PositiveInt
    d_model: PositiveInt
    heads: PositiveInt
    context: PositiveInt
    vocabulary: PositiveInt
    global_batch_size: PositiveInt
    lr: PositiveFloat
    betas: tuple[Share, Share]
    eps: PositiveFloat
    weight_decay: NonNegativeFloat
    max_grad_norm: PositiveFloat
    warmup_steps: PositiveInt
    validations_per_epoch: PositiveInt
    activation_checkpointing: bool

    def global_batch(self, workers: int) -> int:
        """Return the sequences of one optimizer step, whatever the number of workers."""
        return self.global_batch_size


def check(config: Config, *, workers: int, folder: Path | None) -> None:
    """Raise UserError where the sequences of a step cannot be shared out, or the heads do not fit."""
    batches(config, workers)
    if config.d_model % config.heads:
        raise UserError(
            f"task.heads={config.heads} does not divide task.d_model={config.d_model}",
            hint="every head has d_model / heads numbers: give a divisor",
        )


def batches(config: Config, workers: int) -> tuple[int, int]:
    """Return the sequences of a worker's step and of its micro-batch, which divides it.

    Raises UserError where the workers do not divide the sequences of a step.
    """
    batch, rest = divmod(config.global_batch_size, workers)
    if rest:
        raise UserError(
            f"{workers} workers cannot share the {config.global_batch_size} sequences of a step equally",
            hint="use a number of workers that divides it",
        )
    return batch, max(size for size in range(1, min(batch, config.batch_size) + 1) if batch % size == 0)

"""Task 5: language modelling with a decoder-only Transformer, GPT-2. Large products, 498 MB of gradients."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from mlbench.config.errors import UserError
from mlbench.config.experiment import NonNegativeFloat, PositiveFloat, PositiveInt, TrainingConfig
from mlbench.datasets import arrow
from mlbench.tasks import heads
from mlbench.tasks.gpt import data

prepare = data.prepare_dataset
Share = Annotated[float, Field(ge=0, lt=1)]
LIBRARIES = ("tokenizers",)


class Config(TrainingConfig):
    """What conf/task/gpt.yaml holds beyond the fields of every training task.

    `batch_size` is the most sequences that a worker computes at a time. As nothing in the model looks across
    sequences and there is no dropout, it changes speed and memory alone.
    """

    FREE = ("precision", "batch_size", "activation_checkpointing")
    ONE_SHAPE = True
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
    """Raise UserError if the sequences of a step cannot be shared out, or heads or text do not fit."""
    batches(config, workers)
    heads.check(config)
    if folder is None:
        return
    rows = {name: split["rows"] for name, split in arrow.read_manifest(folder)["splits"].items()}
    if config.vocabulary < rows["vocabulary"]:
        raise UserError(
            f"task.vocabulary={config.vocabulary} is less than the {rows['vocabulary']:,} tokens of "
            f"{config.dataset}",
            hint=f"task.vocabulary={rows['vocabulary']}, or more",
        )
    for split, needed in (("train", config.global_batch_size), ("valid", 1)):
        sequences = (rows[split] - 1) // config.context
        if sequences < needed:
            raise UserError(
                f"the {split} text of {config.dataset} has {sequences:,} sequences of {config.context:,} "
                f"tokens, {needed:,} are needed",
                hint="use a smaller task.context",
            )


def batches(config: Config, workers: int) -> tuple[int, int]:
    """Return the sequences of a worker's step and of its micro-batch, which divides it.

    Raises UserError if the workers do not divide the sequences of a step.
    """
    batch, rest = divmod(config.global_batch_size, workers)
    if rest:
        raise UserError(
            f"{workers} workers cannot share the {config.global_batch_size} sequences of a step equally",
            hint="use a number of workers that divides it",
        )
    return batch, max(size for size in range(1, min(batch, config.batch_size) + 1) if batch % size == 0)

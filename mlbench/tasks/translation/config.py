"""The fields that both translation tasks have."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from mlbench.experiment.config import NonNegativeFloat, PositiveFloat, PositiveInt, TrainingConfig

Share = Annotated[float, Field(ge=0, lt=1)]


class TranslationConfig(TrainingConfig):
    """What conf/task/{gnmt,transformer}.yaml hold beyond the fields of every training task.

    `batch_size` is the most that one worker's micro-batch holds, in what `budget` says.
    """

    OWN_DATA = ("train_files", "test_files")
    DATA_FIELDS = ("source", "target")

    train_files: Path | None
    test_files: Path | None
    source: str
    target: str
    longest: PositiveInt
    longest_test: PositiveInt
    budget: Literal["sentences", "tokens"]
    update_size: PositiveInt
    units: PositiveInt
    layers: PositiveInt
    dropout: Share
    smoothing: Share
    rate: PositiveFloat
    betas: tuple[Share, Share]
    epsilon: PositiveFloat
    warmup: PositiveInt
    clip: PositiveFloat | None
    precision: Literal["fp16", "bf16", "fp32"]
    loss_scale: PositiveFloat
    loss_scale_window: PositiveInt
    loss_scale_largest: PositiveFloat | None
    validate_at: tuple[Annotated[float, Field(gt=0, le=1)], ...]
    beams: PositiveInt
    length_norm: NonNegativeFloat
    coverage: NonNegativeFloat
    most_words: PositiveInt
    more_words: PositiveInt | None

    def global_batch(self, workers: int) -> int:
        """Return the sentences or tokens of one optimizer step, whatever the number of workers."""
        return self.update_size

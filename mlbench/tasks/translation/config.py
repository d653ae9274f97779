"""The fields that both translation tasks have."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from mlbench.config.experiment import NonNegativeFloat, PositiveFloat, PositiveInt, TrainingConfig

Share = Annotated[float, Field(ge=0, lt=1)]


class TranslationConfig(TrainingConfig):
    """What conf/task/{gnmt,transformer}.yaml hold beyond the fields of every training task.

    `batch_size` is the most that one worker's micro-batch holds, in units of `batch_by`.
    """

    FREE = ("precision",)
    PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
    RECIPE_PRECISION = {"cpu": "fp32", "cuda": "fp16"}
    OWN_DATA = ("train_files", "test_files")
    DATA_FIELDS = ("source", "target")

    train_files: Path | None
    test_files: Path | None
    source: str
    target: str
    max_length: PositiveInt
    max_test_length: PositiveInt
    batch_by: Literal["sentences", "tokens"]
    global_batch_size: PositiveInt
    chunks: PositiveInt
    layers: PositiveInt
    dropout: Share
    label_smoothing: Share
    lr: PositiveFloat
    betas: tuple[Share, Share]
    eps: PositiveFloat
    warmup_steps: PositiveInt
    max_grad_norm: PositiveFloat | None
    loss_scale: PositiveFloat
    loss_scale_window: PositiveInt
    max_loss_scale: PositiveFloat | None
    validate_at: tuple[Annotated[float, Field(gt=0, le=1)], ...]
    beam_size: PositiveInt
    length_penalty: NonNegativeFloat
    coverage_penalty: NonNegativeFloat
    max_target_length: PositiveInt
    max_length_offset: PositiveInt | None

    def global_batch(self, workers: int) -> int:
        """Return the sentences or tokens of one optimizer step, whatever the number of workers."""
        return self.global_batch_size

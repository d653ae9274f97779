"""Task 1b: image classification with ResNet-50. 100 MB of gradients, and JPEG files that must be decoded."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from mlbench.config.errors import UserError
from mlbench.config.experiment import NonNegativeFloat, PositiveFloat, PositiveInt, TrainingConfig
from mlbench.tasks.resnet50 import data

prepare = data.prepare_dataset
RATE_SAMPLES = 256  # images that the recipe's rate is for (Goyal et al. 2017)
LIBRARIES = ("PIL",)


class Config(TrainingConfig):
    """What conf/task/resnet50.yaml holds beyond the fields of every training task."""

    FREE = ("dataloader_workers", "precision")
    ONE_SHAPE = True
    PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
    RECIPE_PRECISION = {"cpu": "fp32", "cuda": "fp16"}
    OWN_DATA = ("train_folder", "val_folder")

    train_folder: Path | None
    val_folder: Path | None
    dataloader_workers: Annotated[int, Field(ge=0)] | None
    stage_blocks: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt]
    width: PositiveInt
    crop: PositiveInt
    resize: PositiveInt
    min_crop_area: Annotated[float, Field(gt=0, le=1)]
    max_global_batch: PositiveInt
    micro_batch: PositiveInt | None
    lr: PositiveFloat
    warmup_epochs: Annotated[int, Field(ge=0)]
    momentum: NonNegativeFloat
    weight_decay: NonNegativeFloat
    label_smoothing: Annotated[float, Field(ge=0, lt=1)]
    loss_scale: PositiveFloat
    loss_scale_window: PositiveInt

    def global_batch(self, workers: int) -> int:
        """Return the images of one optimizer step over all workers, at most `max_global_batch`."""
        return min(self.batch_size, self.max_global_batch // workers) * workers


def check(config: Config, *, workers: int, folder: Path | None) -> None:
    """Raise UserError if the images of a step cannot be shared out to the workers."""
    batches(config, workers)


def batches(config: Config, workers: int) -> tuple[int, int]:
    """Return the images of a worker's step and of its micro-batch. UserError if they do not go together."""
    batch = config.global_batch(workers) // workers
    if not batch:
        raise UserError(
            f"{workers} workers share a global batch of at most {config.max_global_batch} images",
            hint="use fewer workers",
        )
    micro = config.micro_batch or batch
    if batch % micro:
        raise UserError(
            f"task.micro_batch={micro} does not divide the {batch} images of a worker's step",
            hint="give a divisor, or null for one piece",
        )
    return batch, micro

"""Task 4b: translation with the Transformer. Large products, bound by arithmetic. 843 MB of gradients."""

from pathlib import Path

from mlbench.config.errors import UserError
from mlbench.config.experiment import PositiveInt
from mlbench.tasks import heads
from mlbench.tasks.translation import data as translation
from mlbench.tasks.translation.config import TranslationConfig

prepare = translation.prepare_dataset
LIBRARIES = translation.LIBRARIES


class Config(TranslationConfig):
    """What conf/task/transformer.yaml holds beyond the fields of every translation task."""

    d_model: PositiveInt
    ffn: PositiveInt
    heads: PositiveInt


def check(config: Config, *, workers: int, folder: Path | None) -> None:
    """Raise UserError if the text makes no step, or the model's widths do not fit each other."""
    heads.check(config)
    if config.d_model % 2:
        raise UserError(
            f"task.d_model={config.d_model} is odd",
            hint="positions are as many sines as cosines: give an even width",
        )
    translation.check(config, workers=workers, folder=folder)

"""Task 4b: translation with the Transformer; large products, bound by arithmetic; 843 MB of gradients."""

from typing import TYPE_CHECKING

from mlbench.experiment.config import PositiveInt
from mlbench.tasks.transformer import data
from mlbench.tasks.translation.config import TranslationConfig

if TYPE_CHECKING:
    from mlbench.training.loop import Outcome
    from mlbench.training.worker import Worker

prepare = data.prepare_dataset


class Config(TranslationConfig):
    """What conf/task/transformer.yaml holds beyond the fields of every translation task."""

    width: PositiveInt
    inner: PositiveInt
    heads: PositiveInt


def run(config: Config, worker: "Worker") -> "Outcome":
    """Train with Adam until the goal or the last epoch."""
    from functools import partial

    from mlbench.tasks.transformer.model import Transformer
    from mlbench.tasks.translation.training import train_translator
    from mlbench.training.schedules import warmup_inverse_sqrt

    return train_translator(
        config,
        worker,
        model=partial(
            Transformer,
            width=config.width,
            inner=config.inner,
            heads=config.heads,
            layers=config.layers,
            dropout=config.dropout,
        ),
        factor=lambda updates: warmup_inverse_sqrt(config.warmup),
        counted=lambda source, target: target,
    )

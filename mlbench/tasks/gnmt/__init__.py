"""Task 4a: translation with GNMT; recurrent, so bound by the length of sentences; 643 MB of gradients."""

from typing import TYPE_CHECKING

from mlbench.experiment.config import PositiveFloat, PositiveInt
from mlbench.tasks.gnmt import data
from mlbench.tasks.translation.config import Share, TranslationConfig

if TYPE_CHECKING:
    from mlbench.training.loop import Outcome
    from mlbench.training.worker import Worker

prepare = data.prepare_dataset


class Config(TranslationConfig):
    """What conf/task/gnmt.yaml holds beyond the fields of every translation task."""

    hidden: PositiveInt
    warmup_from: PositiveFloat
    decay_factor: PositiveFloat
    decay_from: Share
    decay_every: Share
    decay_times: PositiveInt


def run(config: Config, worker: "Worker") -> "Outcome":
    """Train with Adam until the goal or the last epoch."""
    from functools import partial

    from mlbench.tasks.gnmt.model import Gnmt
    from mlbench.tasks.translation.training import train_translator
    from mlbench.training.schedules import exponential_warmup, late_steps, product

    return train_translator(
        config,
        worker,
        model=partial(Gnmt, hidden=config.hidden, layers=config.layers, dropout=config.dropout),
        factor=lambda updates: product(
            exponential_warmup(config.warmup_from, config.warmup),
            late_steps(
                config.decay_factor,
                total=updates,
                start=config.decay_from,
                every=config.decay_every,
                times=config.decay_times,
            ),
        ),
        counted=lambda source, target: source + target,
    )

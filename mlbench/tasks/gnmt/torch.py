"""GNMT with Adam until the goal or the last epoch."""

from functools import partial

from mlbench.tasks.gnmt import Config
from mlbench.tasks.gnmt.model import Gnmt
from mlbench.tasks.translation.torch import build_translator
from mlbench.training import precision
from mlbench.training.schedules import exponential_warmup, late_steps, product
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker


def build(config: Config, worker: Worker) -> TrainingSetup:
    """Return what the loop trains. Tokens of both sides count."""
    precision.require_lstm(config.precision, worker.device)
    return build_translator(
        config,
        worker,
        model=partial(Gnmt, hidden=config.hidden, layers=config.layers, dropout=config.dropout),
        factor=lambda steps: product(
            exponential_warmup(config.warmup_start, config.warmup_steps),
            late_steps(
                config.decay_factor,
                total=steps,
                start=config.decay_start,
                every=config.decay_every,
                times=config.decay_times,
            ),
        ),
        counted=lambda source, target: source + target,
    )

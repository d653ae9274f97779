"""MLPerf Training 0.7's keys of a GNMT log (mlcommons/training_policies, ruleset training_0.7.0)."""

from typing import Any

from mlbench.tasks.gnmt import Config

BENCHMARK = "gnmt"
OPEN = None  # why the recipe is MLPerf's open division. None: it keeps the closed division's rules


def hyperparameters(config: Config, *, workers: int, steps_per_epoch: int) -> dict[str, Any]:
    """Return values by MLPerf's keys. Intervals are in steps. A pair is a value and its metadata."""
    steps = config.epochs * steps_per_epoch
    return {
        "opt_name": "adam",
        "opt_base_learning_rate": config.lr,
        "opt_learning_rate_alt_warmup_func": "exponential",
        "opt_learning_rate_warmup_steps": config.warmup_steps,
        "opt_learning_rate_alt_decay_func": "exponential",
        "opt_learning_rate_decay_factor": config.decay_factor,
        "opt_learning_rate_decay_interval": round(config.decay_every * steps),
        "opt_learning_rate_decay_steps": config.decay_times,
        "opt_learning_rate_remain_steps": round(config.decay_start * steps),
        "max_sequence_length": (config.max_length + 2, {"method": "discard"}),  # with both marks
    }

"""MLPerf Training 0.7's keys of a Transformer log (mlcommons/training_policies, training_0.7.0)."""

from typing import Any

from mlbench.tasks.transformer import Config

BENCHMARK = "transformer"
OPEN = None  # why the recipe is MLPerf's open division. None: it keeps the closed division's rules


def hyperparameters(config: Config, *, workers: int, steps_per_epoch: int) -> dict[str, Any]:
    """Return values by MLPerf's keys. A pair is a value and its metadata."""
    return {
        "opt_name": "adam",
        "opt_base_learning_rate": config.lr,
        "opt_learning_rate_warmup_steps": config.warmup_steps,
        "opt_adam_beta_1": config.betas[0],
        "opt_adam_beta_2": config.betas[1],
        "opt_adam_epsilon": config.eps,
        "max_sequence_length": (config.max_length + 1, {"method": "discard"}),  # with the end mark
    }

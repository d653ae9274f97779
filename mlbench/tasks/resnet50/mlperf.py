"""MLPerf Training 0.7's keys of a ResNet-50 log (mlcommons/training_policies, ruleset training_0.7.0)."""

from typing import Any

from mlbench.tasks.resnet50 import RATE_SAMPLES, Config

BENCHMARK = "resnet"
OPEN = "the rate falls as a cosine to 0, MLPerf's closed division requires a polynomial that ends at 0.0001"


def hyperparameters(config: Config, *, workers: int, steps_per_epoch: int) -> dict[str, Any]:
    """Return values by MLPerf's keys."""
    batch = config.global_batch(workers)
    return {
        "opt_name": "sgd",
        "sgd_opt_base_learning_rate": config.lr * batch / RATE_SAMPLES,
        "sgd_opt_end_learning_rate": 0.0,
        "sgd_opt_learning_rate_decay_steps": (config.epochs - config.warmup_epochs) * steps_per_epoch,
        "sgd_opt_weight_decay": config.weight_decay,
        "sgd_opt_momentum": config.momentum,
        "model_bn_span": config.micro_batch or batch // workers,
        "opt_learning_rate_warmup_epochs": config.warmup_epochs,
    }

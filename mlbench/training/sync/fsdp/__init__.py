"""Weights, gradients and optimizer state shared out among the workers (FSDP2, ZeRO stage 3)."""

from typing import ClassVar, Literal

from mlbench.config.experiment import SyncConfig


class Config(SyncConfig):
    """What conf/sync/fsdp.yaml holds."""

    CLOSED: ClassVar[bool] = True
    NEEDS_OPTIMIZER: ClassVar[bool] = True
    restarts: ClassVar[bool] = False  # weights and the optimizer's state are in parts

    unit: Literal["model", "child"]
    reshard_after_forward: bool

"""DDP with the optimizer's state shared out among the workers (ZeRO stage 1)."""

from typing import ClassVar

from mlbench.training.sync import ddp


class Config(ddp.Config):
    """What conf/sync/zero1.yaml holds."""

    CLOSED: ClassVar[bool] = True
    NEEDS_OPTIMIZER: ClassVar[bool] = True
    restarts: ClassVar[bool] = False  # the optimizer's state is in parts

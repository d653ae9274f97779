"""Steps on each worker alone, and an average of the models every few of them."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from mlbench.config.experiment import PositiveFloat, PositiveInt, SyncConfig


class Config(SyncConfig):
    """What conf/sync/local_sgd.yaml holds."""

    restarts: ClassVar[bool] = False  # models, momentum and the outer step are local to each worker
    own_steps: ClassVar[bool] = True

    every: PositiveInt
    start_step: Annotated[int, Field(ge=0)]
    outer_lr: PositiveFloat
    outer_momentum: Annotated[float, Field(ge=0, lt=1)]
    nesterov: bool

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> "Config":
        if self.nesterov and not self.outer_momentum:
            raise ValueError("nesterov=true needs outer_momentum above 0")
        return self

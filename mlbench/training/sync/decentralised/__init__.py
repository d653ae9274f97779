"""Models averaged with the neighbours in a graph instead of with all workers."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from mlbench.config.errors import UserError
from mlbench.config.experiment import PositiveInt, Precision, SyncConfig
from mlbench.training.sync.decentralised.graphs import receivers


class Config(SyncConfig):
    """What conf/sync/decentralised.yaml holds."""

    restarts: ClassVar[bool] = False  # models and momentum are local to each worker
    own_steps: ClassVar[bool] = True

    graph: Literal["ring", "torus", "exponential", "one_peer_exponential", "complete"]
    compression: Literal["none", "topk", "randomk", "sign", "qsgd"]
    consensus_lr: Annotated[float, Field(gt=0, le=1)]
    density: Annotated[float, Field(gt=0, le=1)]
    levels: Annotated[int, Field(ge=1, le=127)]
    block: PositiveInt

    @model_validator(mode="after")
    def _compression_needs_one_graph(self) -> "Config":
        if self.compression != "none" and self.graph == "one_peer_exponential":
            raise ValueError(
                "compression needs neighbours that stay the same, and graph=one_peer_exponential changes them"
            )
        return self

    def check(self, *, workers: int, precision: Precision) -> None:
        """Raise UserError if so many workers do not make the graph, or if models would move apart.

        A full step to the mean is stable if compression loses a twentieth of the square at most, for which
        block / levels^2 is a bound with QSGD.
        """
        receivers(self.graph, 0, workers, 0)
        exact = {"none": True, "sign": False, "qsgd": self.levels**2 >= 20 * self.block}
        if self.consensus_lr == 1 and not exact.get(self.compression, self.density == 1):
            raise UserError(
                f"sync.compression={self.compression} needs sync.consensus_lr below 1, or models drift apart",
                hint="0.04 for topk and 0.01 for randomk with density=0.01, 0.34 for qsgd with levels=16 "
                "in Koloskova et al. 2019",
            )

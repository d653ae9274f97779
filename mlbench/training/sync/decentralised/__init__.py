"""Models averaged with the neighbours in a graph instead of with all workers."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mlbench.config.experiment import PositiveInt, Precision, SyncConfig
from mlbench.training.sync.decentralised.graphs import receivers


class Config(SyncConfig):
    """What conf/sync/decentralised.yaml holds."""

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
        """Raise UserError where so many workers do not make the graph."""
        receivers(self.graph, 0, workers, 0)

    @property
    def restarts(self) -> bool:
        """False: models and momentum are each worker's own."""
        return False

"""A sync strategy: workers train alone and average their models every few steps (Stich 2019, Local SGD)."""

from mlbench.config.experiment import PositiveInt, SyncConfig


class Config(SyncConfig):
    """What conf/sync/model_average.yaml holds."""

    every: PositiveInt  # steps between two averages

    @property
    def own_steps(self) -> bool:
        """True."""
        return True

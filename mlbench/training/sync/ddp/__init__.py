"""Gradients averaged by an all-reduce that overlaps with backward."""

from mlbench.config.experiment import PositiveFloat, SyncConfig


class Config(SyncConfig):
    """What conf/sync/ddp.yaml holds."""

    bucket_cap_mb: PositiveFloat  # DDP's bucket size in MiB

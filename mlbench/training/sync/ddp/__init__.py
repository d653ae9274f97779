"""Gradients averaged by an all-reduce that overlaps with backward."""

from mlbench.config.experiment import PositiveFloat, Sync


class Config(Sync):
    """What conf/sync/ddp.yaml holds."""

    bucket_cap_mb: PositiveFloat  # DDP's bucket size in MiB

"""A cluster: a Ray of its own on this machine, with as many CPUs as its configuration says."""

from collections.abc import Iterator
from contextlib import contextmanager

from mlbench.clusters import persistent, ray_env
from mlbench.config.experiment import Cluster, Experiment, PositiveInt

shares_files = True


class Config(Cluster):
    """What conf/cluster/few_cpus.yaml holds."""

    cpus: PositiveInt


@contextmanager
def connect(experiment: Experiment) -> Iterator[str]:
    """Yield the address at which workers reach this process; what was started ends with the block."""
    assert isinstance(experiment.cluster, Config)
    ray_env.require_token()
    ray_env.stay_on_loopback()
    import ray

    ray.init(
        address="local",
        num_cpus=experiment.cluster.cpus,
        resources=persistent.DRIVER_RESOURCE,
        include_dashboard=False,
        log_to_driver=experiment.verbose,
    )
    try:
        yield "127.0.0.1"
    finally:
        ray.shutdown()

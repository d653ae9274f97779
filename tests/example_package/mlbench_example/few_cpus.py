"""A cluster: a Ray of its own on this machine, with as many CPUs as its configuration says."""

from collections.abc import Iterator
from contextlib import contextmanager

from mlbench.clusters import persistent, ray_env
from mlbench.config.experiment import Cluster, Experiment, PositiveInt
from mlbench.record import temporary_folder

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

    with temporary_folder.folder() as folder:  # else Ray's files stay, and its address is what others join
        ray.init(
            address="local",
            num_cpus=experiment.cluster.cpus,
            resources=persistent.DRIVER_RESOURCE,
            include_dashboard=False,
            log_to_driver=experiment.verbose,
            _temp_dir=f"{folder}/{ray_env.SUBFOLDER}",
        )
        try:
            yield "127.0.0.1"
        finally:
            ray.shutdown()

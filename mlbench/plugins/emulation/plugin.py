"""Connect the emulation of networks to the rest of mlbench: the entry point of `mlbench.networks`."""

from collections.abc import Iterator

from mlbench.config.experiment import Experiment
from mlbench.plugins.emulation.ray_hosts import connect as connect
from mlbench.plugins.emulation.ray_hosts import resources as resources


def faults(experiment: Experiment) -> Iterator[str]:
    """Yield a sentence for each value that emulated hosts cannot have."""
    network, workers, backend = experiment.network, experiment.workers, experiment.backend
    if experiment.cluster.name != "local":
        yield f"network={network.name} emulates hosts on this machine, so it goes with cluster=local alone"
    if backend.device != "cpu":
        yield f"network={network.name}: emulated hosts have no GPUs, choose backend=gloo"
    if backend.interface is not None:
        yield f"backend.interface={backend.interface}: network={network.name} has its interface"
    hosts = network.hosts or workers
    if hosts < 2 or workers % hosts:
        yield f"network.hosts={hosts}: workers={workers} cannot be dealt out evenly to two hosts or more"
    if network.racks > hosts:
        yield f"network.racks={network.racks}: must be at most {hosts} hosts"
    if network.jitter_ms > network.delay_ms:
        yield f"network.jitter_ms={network.jitter_ms:g} is above network.delay_ms={network.delay_ms:g}"
    slower = network.slow_bandwidth_mbit_s is not None or network.slow_cpus is not None
    if (network.slow_rank is not None) != slower:
        yield "network.slow_rank= goes with network.slow_bandwidth_mbit_s=, network.slow_cpus=, or both"
    if network.slow_rank is not None and network.slow_rank >= workers:
        yield f"network.slow_rank={network.slow_rank}: must be less than workers={workers}"

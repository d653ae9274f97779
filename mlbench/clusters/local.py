"""Ray on this machine: one that runs already is used and left running, else one is started and stopped."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import ray

from mlbench.clusters import Connection, room
from mlbench.config import Experiment

LOOPBACK = "127.0.0.1"  # nothing outside this machine can reach the cluster


@contextmanager
def connect(experiment: Experiment) -> Iterator[Connection]:
    """Yield a local cluster."""
    options = {
        "logging_level": "INFO" if experiment.verbose else "CRITICAL",
        "log_to_driver": experiment.verbose,
    }
    if ray.is_initialized():  # a sweep or a test keeps one connection for many runs
        yield room.reserve(experiment, host=LOOPBACK)
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if not _join(options):
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=len(os.sched_getaffinity(0)),
            resources={"mlbench_driver": 1},  # what a Tune trial reserves (docs/decisions.md)
            _node_ip_address=LOOPBACK,
            **options,
        )
    try:
        yield room.reserve(experiment, host=LOOPBACK)
    finally:
        ray.shutdown()


def _join(options: dict) -> bool:
    """Connect to a Ray that runs on this machine; return false if there is none."""
    if os.environ.get("RAY_ADDRESS") is None and not os.path.exists("/tmp/ray/ray_current_cluster"):
        return False
    with suppress(ConnectionError):
        ray.init(address="auto", **options)
        return True
    return False

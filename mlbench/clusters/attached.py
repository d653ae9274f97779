"""The Ray cluster that this process is in: a Ray job's, a KubeRay pod's, or the one RAY_ADDRESS names."""

from collections.abc import Iterator
from contextlib import contextmanager

import ray

from mlbench.clusters import Connection, room
from mlbench.config import Experiment
from mlbench.errors import UserError


@contextmanager
def connect(experiment: Experiment) -> Iterator[Connection]:
    """Yield the cluster; raise UserError if there is none to attach to."""
    joined = not ray.is_initialized()
    if joined:
        try:
            ray.init(
                address="auto",
                logging_level="INFO" if experiment.verbose else "CRITICAL",
                log_to_driver=experiment.verbose,
            )
        except ConnectionError as error:
            raise UserError(
                "cluster=attached found no Ray cluster around this process",
                hint="submit it as a Ray job, set RAY_ADDRESS, or say cluster=local",
            ) from error
    try:
        yield room.reserve(experiment, host=ray.util.get_node_ip_address())
    finally:
        if joined:
            ray.shutdown()

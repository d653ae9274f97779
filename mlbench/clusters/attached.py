"""The Ray cluster that this process is in: a Ray job's, a KubeRay pod's, or the one RAY_ADDRESS names."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from mlbench.config import Experiment
from mlbench.errors import UserError


@contextmanager
def join(experiment: Experiment) -> Iterator[str]:
    """Yield this node's address; raise UserError if there is no cluster to attach to."""
    joined = not ray.is_initialized()
    if joined:
        try:
            ray.init(
                address="auto",
                logging_level=logging.INFO if experiment.verbose else logging.CRITICAL,
                log_to_driver=experiment.verbose,
            )
        except ConnectionError as error:
            raise UserError(
                "cluster=attached found no Ray cluster around this process",
                hint="submit it as a Ray job, set RAY_ADDRESS, or say cluster=local",
            ) from error
    try:
        yield ray.util.get_node_ip_address()
    finally:
        if joined:
            ray.shutdown()

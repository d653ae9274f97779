"""The Ray cluster that this process is in: a Ray job's, a KubeRay pod's, or the one RAY_ADDRESS names."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._private.services import canonicalize_bootstrap_address_or_die

from mlbench.experiment.config import Experiment
from mlbench.experiment.errors import UserError

REACH_S = 5  # s in which a Ray that runs takes a connection; ray.init waits for minutes for one that does not
WAY_OUT = "submit it as a Ray job, set RAY_ADDRESS, or say cluster=local"


@contextmanager
def join(experiment: Experiment) -> Iterator[str]:
    """Yield this node's address; raise UserError if there is no cluster to attach to."""
    joined = not ray.is_initialized()
    if joined:
        address = _reachable()
        try:
            ray.init(
                address=address,
                logging_level=logging.INFO if experiment.verbose else logging.CRITICAL,
                log_to_driver=experiment.verbose,
            )
        except ConnectionError as error:
            raise UserError(
                f"cluster=attached could not join the Ray at {address}",
                hint="a Ray that asks for a token wants RAY_AUTH_MODE=token here, too",
            ) from error
    try:
        yield ray.util.get_node_ip_address()
    finally:
        if joined:
            ray.shutdown()


def _reachable() -> str:
    """Return the address that "auto" stands for to Ray, or raise UserError where nobody answers.

    What Ray notes of the last cluster that was started here outlives that cluster.
    """
    try:
        address = canonicalize_bootstrap_address_or_die("auto")
    except ConnectionError as error:
        raise UserError("cluster=attached found no Ray cluster around this process", hint=WAY_OUT) from error
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise UserError(f"cluster=attached found no Ray at {address} ({error})", hint=WAY_OUT) from error
    return address

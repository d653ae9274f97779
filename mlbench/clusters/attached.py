"""The Ray cluster that this process is in: a Ray job's, a KubeRay pod's, or the one RAY_ADDRESS names."""

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from mlbench.clusters import connection, ray_env
from mlbench.experiment.config import Cluster, Experiment, NonNegativeFloat
from mlbench.experiment.errors import UserError

shares_files = False


class Config(Cluster):
    """A cluster's fields and this one's own."""

    address: str | None  # HOST:PORT of the Ray's head; None: RAY_ADDRESS, or the Ray that this process is in
    wait_s: NonNegativeFloat  # s for an autoscaler to add nodes; 0: what does not fit is refused at once


REACH_S = 5  # s in which a Ray that runs takes a connection; ray.init waits for minutes for one that does not
HINT = "submit it as a Ray job, say cluster.address=HOST:PORT, or cluster=local"
ADDRESS = re.compile(r"(?P<host>\[[\da-fA-F:]+\]|[\w.-]+):(?P<port>\d{1,5})")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@contextmanager
def connect(experiment: Experiment) -> Iterator[str]:
    """Yield this node's address; raise UserError if there is no cluster to attach to."""
    place = getattr(experiment.cluster, "address", None) or os.environ.get("RAY_ADDRESS") or "auto"
    require_address(place)
    connection.import_trainer()
    import ray

    joined = not ray.is_initialized()
    if joined:
        address = _reachable(place)
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
        except Exception as error:  # e.g. OSError: no Ray runs on this node, whose address it wants to bind
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"cluster=attached could not join the Ray at {address}: {reason}",
                hint="the command has to run on a node of that cluster, or be submitted as a Ray job",
            ) from error
    try:
        yield ray.util.get_node_ip_address()
    finally:
        if joined:
            ray.shutdown()


def require_address(address: str) -> None:
    """Raise UserError for an address that no driver can join; prepare for one on this machine alone."""
    if address == "auto":
        return
    if "://" in address:
        raise UserError(
            f"{address} is an address of Ray Client or of a job server, which no driver can join",
            hint="submit the command as a Ray job, or say cluster.address=HOST:PORT on a node of the cluster",
        )
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 2**16:
        raise UserError(f"{address} is not of the form HOST:PORT", hint=HINT)
    if match["host"] in LOOPBACK:
        ray_env.stay_on_loopback()


def _reachable(place: str) -> str:
    """Return the address, or the one that "auto" stands for to Ray; UserError where nobody answers.

    What Ray notes of the last cluster that was started here outlives that cluster.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die

    try:
        address = canonicalize_bootstrap_address_or_die(place)
    except ConnectionError as error:
        raise UserError("cluster=attached found no Ray cluster around this process", hint=HINT) from error
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise UserError(f"cluster=attached found no Ray at {address} ({error})", hint=HINT) from error
    return address

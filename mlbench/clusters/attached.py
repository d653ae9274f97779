"""The Ray cluster that this process is in: a Ray job's, a KubeRay pod's, or the one RAY_ADDRESS names."""

import logging
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mlbench import clock
from mlbench.clusters import ray_env, ray_private
from mlbench.config.errors import UserError, first_line
from mlbench.config.experiment import Cluster, Experiment, NonNegativeFloat

shares_files = False


class Config(Cluster):
    """A cluster's fields and this one's own."""

    address: str | None  # HOST:PORT of the Ray's head; None: RAY_ADDRESS, or the Ray that this process is in
    wait_s: NonNegativeFloat  # s for an autoscaler to add nodes; 0: what does not fit is refused at once


POLL_S = 0.2  # s between two looks whether a Ray that has just started has a node
REACH_S = 5.0  # s in which a Ray that runs answers; ray.init waits for minutes for one that does not
HINT = "submit it as a Ray job, say cluster.address=HOST:PORT, or cluster=local"
ADDRESS = re.compile(r"(?P<host>\[[\da-fA-F:]+\]|[\w.-]+):(?P<port>\d{1,5})")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# Ray's GCS is a gRPC server: it answers the preface of HTTP/2, with empty settings, by its own settings
# (RFC 9113, 3.4 and 6.5).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
SETTINGS = 4  # type of a frame


@contextmanager
def connect(experiment: Experiment) -> Iterator[str]:
    """Yield this node's address; raise UserError if there is no cluster to attach to."""
    target = getattr(experiment.cluster, "address", None) or os.environ.get("RAY_ADDRESS") or "auto"
    require_address(target)
    import ray

    joined = not ray.is_initialized()
    if joined:
        address = _reachable(target)
        try:
            ray.init(
                address=address,
                logging_level=logging.INFO if experiment.verbose else logging.CRITICAL,
                log_to_driver=experiment.verbose,
            )
        except Exception as error:  # ConnectionError, RuntimeError and whatever a server's answer becomes
            sentence = f"cluster=attached could not join the Ray at {address}: {first_line(error)}"
            raise UserError(sentence) from error
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


def _reachable(target: str) -> str:
    """Return the address, or the one that "auto" stands for to Ray; UserError where nobody answers.

    What Ray notes of the last cluster that was started here outlives that cluster.
    """
    try:
        address = ray_private.default_address() if target == "auto" else target
    except ConnectionError as error:
        if "multiple" in str(error):
            raise UserError(f"several Ray clusters run on this machine: {error}", hint=HINT) from error
        raise UserError("cluster=attached found no Ray cluster around this process", hint=HINT) from error
    faults: queue.Queue[UserError | None] = queue.Queue()
    # In a thread, for nothing else ends the wait for a name server, or for gRPC.
    threading.Thread(target=lambda: faults.put(_fault(address)), daemon=True).start()
    try:
        fault = faults.get(timeout=REACH_S)
    except queue.Empty:
        fault = _no_ray(address, f"no answer within {REACH_S:g} s")
    if fault:
        raise fault
    return address


def _fault(address: str) -> UserError | None:
    """Return why this process cannot join a Ray at an address; None where it may.

    Before ray.init, which tries for a minute, and ends the process where the node that it takes is elsewhere.
    """
    host, _, port = address.rpartition(":")
    encrypted = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")  # as Ray reads it
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2 * REACH_S) as connection:
            connection.sendall(b"" if encrypted else PREFACE)
            frame = b"" if encrypted else connection.recv(9)  # bytes of a frame's head
    except (OSError, UnicodeError) as error:  # the second for a name that no host can have
        return _no_ray(address, str(error))
    if not encrypted and frame[3:4] != bytes([SETTINGS]):
        return _no_ray(address, "the server there is not Ray's")
    end = clock.monotonic() + REACH_S
    try:
        while not (raylets := ray_private.raylet_sockets(address, REACH_S)) and clock.monotonic() < end:
            time.sleep(POLL_S)  # the head's own node registers a moment after its GCS answers
    except Exception as error:  # of Ray's C++ part, which has no type for each
        hint = "a Ray that asks for a token wants RAY_AUTH_MODE=token here, and the same token"
        return UserError(f"the server at {address} takes no driver: {first_line(error)}", hint=hint)
    if not any(map(os.path.exists, raylets)):
        hint = "run the command on a node of that cluster, or submit it as a Ray job"
        return UserError(f"this machine is no node of the Ray at {address}", hint=hint)
    return None


def _no_ray(address: str, why: str) -> UserError:
    return UserError(f"cluster=attached found no Ray at {address} ({why})", hint=HINT)

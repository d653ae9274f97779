"""Attach to the Ray cluster of this process: a Ray job's, a KubeRay pod's, or the one at RAY_ADDRESS."""

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
from mlbench.config.errors import ClusterError, UserError, first_line
from mlbench.config.experiment import Cluster, Experiment, NonNegativeFloat

shares_files = False


class Config(Cluster):
    """A cluster's fields and those of an attached one."""

    address: str | None  # HOST:PORT of the Ray's head; None: RAY_ADDRESS, or the Ray that this process is in
    wait_s: NonNegativeFloat  # s for an autoscaler to add nodes; 0: refuse at once what does not fit


POLL_S = 0.2  # s between two checks whether a Ray that has just started has a node
REACH_S = 5.0  # s in which a running Ray answers; without an answer ray.init waits for minutes
HINT = "submit it as a Ray job, or give cluster.address=HOST:PORT or cluster=local"
ADDRESS = re.compile(r"(?P<host>\[[\da-fA-F:]+\]|[\w.-]+):(?P<port>\d{1,5})")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# Ray's GCS is a gRPC server: it answers the preface of HTTP/2, with empty settings, by its settings (RFC
# 9113, 3.4 and 6.5).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
SETTINGS = 4  # type of a frame


def joins() -> bool:
    """Return True: the nodes' Ray is never started here."""
    return True


@contextmanager
def connect(experiment: Experiment) -> Iterator[str]:
    """Yield this node's address. Raises UserError if there is no cluster to attach to."""
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
        except Exception as error:  # ConnectionError, RuntimeError and any other form of a server's answer
            sentence = f"cluster=attached could not join the Ray at {address}: {first_line(error)}"
            raise ClusterError(sentence) from error
    try:
        yield ray.util.get_node_ip_address()
    finally:
        if joined:
            ray.shutdown()


def require_address(address: str) -> None:
    """Raise UserError for an address that no driver can join. Prepare for one on this machine alone."""
    if address == "auto":
        return
    if "://" in address:
        raise ClusterError(
            f"{address} is an address of Ray Client or of a job server, which no driver can join",
            hint="submit the command as a Ray job, or give cluster.address=HOST:PORT on a node of "
            "the cluster",
        )
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 2**16:
        raise ClusterError(f"{address} is not of the form HOST:PORT", hint=HINT)
    if match["host"] in LOOPBACK:
        ray_env.stay_on_loopback()


def _reachable(target: str) -> str:
    """Return the address, or the one that Ray uses for "auto". Raises UserError if no cluster responds.

    Ray's note of the last cluster that was started here outlives that cluster.
    """
    try:
        address = ray_private.default_address() if target == "auto" else target
    except ConnectionError as error:
        if "multiple" in str(error):
            raise ClusterError(f"several Ray clusters run on this machine: {error}", hint=HINT) from error
        raise ClusterError("cluster=attached found no Ray cluster around this process", hint=HINT) from error
    faults: queue.Queue[UserError | None] = queue.Queue()
    # In a thread, since nothing else ends the wait for a name server, or for gRPC.
    threading.Thread(target=lambda: faults.put(_fault(address)), daemon=True).start()
    try:
        fault = faults.get(timeout=REACH_S)
    except queue.Empty:
        fault = _no_ray(address, f"no answer within {REACH_S:g} s")
    if fault:
        raise fault
    return address


def _fault(address: str) -> UserError | None:
    """Return why this process cannot join a Ray at an address, or None if it may.

    It runs before ray.init, which tries for a minute, and ends the process if its node is on another machine.
    """
    host, _, port = address.rpartition(":")
    encrypted = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")  # as Ray reads it
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2 * REACH_S) as connection:
            connection.sendall(b"" if encrypted else PREFACE)
            frame = b"" if encrypted else connection.recv(9)  # bytes of a frame's head
    except (OSError, UnicodeError) as error:  # UnicodeError for a name that no host can have
        return _no_ray(address, str(error))
    if not encrypted and frame[3:4] != bytes([SETTINGS]):
        return _no_ray(address, "that server is not Ray's")
    end = clock.monotonic() + REACH_S
    try:
        while not (raylets := ray_private.raylet_sockets(address, REACH_S)) and clock.monotonic() < end:
            time.sleep(POLL_S)  # the head's node registers a moment after its GCS answers
    except Exception as error:  # of Ray's C++ part, which has no type for each
        hint = "if that Ray requires a token, set RAY_AUTH_MODE=token and the same token"
        return UserError(f"the server at {address} accepts no driver: {first_line(error)}", hint=hint)
    if not any(map(os.path.exists, raylets)):
        hint = "run the command on a node of that cluster, or submit it as a Ray job"
        return UserError(f"this machine is not a node of the Ray cluster at {address}", hint=hint)
    return None


def _no_ray(address: str, why: str) -> UserError:
    return UserError(f"cluster=attached found no Ray at {address} ({why})", hint=HINT)

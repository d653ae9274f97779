"""Use Ray on this machine: a sweep's, or the one that `mlbench.cluster start` keeps, else one for this run.

Its servers listen on loopback alone. A Ray that another program started for itself is not used: it would end
with that program.
"""

import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import psutil

from mlbench.clusters import node, persistent, ray_env, ray_private, reaper
from mlbench.clusters.processes import end, of_session
from mlbench.config.errors import ClusterError, first_line
from mlbench.config.experiment import Cluster, Experiment
from mlbench.record import temporary_folder

shares_files = True


class Config(Cluster):
    """A cluster's fields and those of this machine."""

    # wait for another run that measures on this machine; false: measure at the same time and mark both
    exclusive: bool


LOOPBACK = "127.0.0.1"  # workers and their heartbeats are on this machine
MIN_OPEN_FILES = 256  # descriptors; Ray's servers and a worker each need some 100 (2.60)


def joins() -> bool:
    """Return whether a Ray of `start` or of a sweep is joined."""
    return persistent.address() is not None


@contextmanager
def connect(experiment: Experiment) -> Iterator[str]:
    """Yield the loopback address. A Ray that was started here is stopped at the end."""
    ray_env.require_token()
    ray_env.stay_on_loopback()
    require_machine()
    import ray

    if ray.is_initialized():  # a sweep or a test keeps one connection for many runs
        yield LOOPBACK
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    address = persistent.address()
    if address is None:
        ray_env.require_processes()
        reaper.reap_if_any()
        with temporary_folder.folder() as folder:
            try:
                _init(None, folder, verbose=experiment.verbose)
                yield LOOPBACK
            finally:
                started = of_session(f"{folder}/")
                ray.shutdown()
                # Ray's workers end when they miss their server, but sometimes one hangs for ever (2.60).
                end(started)
        return
    try:
        _init(address, None, verbose=experiment.verbose)
        yield LOOPBACK
    finally:
        ray.shutdown()


def _init(address: str | None, folder: Path | None, *, verbose: bool) -> None:
    """Join the Ray at `address`, or start one in `folder`. Raises UserError with Ray's first words."""
    import ray

    own = {
        "_temp_dir": f"{folder}/{ray_env.SUBFOLDER}",
        "include_dashboard": False,
        "num_cpus": node.usable_cpus(),
        "object_store_memory": node.OBJECT_STORE_BYTES,
        "resources": persistent.DRIVER_RESOURCE,
    }
    try:
        with reaper.marked(folder) if folder else nullcontext():
            ray.init(
                address=address or "local",
                logging_level=logging.INFO if verbose else logging.CRITICAL,
                log_to_driver=verbose,
                **({} if address else own),
            )
        if not address and not verbose:
            ray_private.end_log_monitor()
    except Exception as error:  # Ray raises the various errors of its servers
        with suppress(Exception):
            ray.shutdown()
        reason = first_line(error)
        if address:
            hint = "`mlbench cluster stop` ends it, a run then starts another"
            raise ClusterError(f"the Ray at {address} does not answer: {reason}", hint=hint) from error
        raise ClusterError(
            f"Ray did not start: {reason}", hint="verbose=true shows what it prints"
        ) from error


def _raise_limit(limit: int, needed: int) -> int | None:
    """Raise a limit of this process to Ray's needs. Return the hard limit if that is lower."""
    soft, hard = resource.getrlimit(limit)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    if hard != resource.RLIM_INFINITY and hard < needed:
        return hard
    resource.setrlimit(limit, (needed, hard))
    return None


def require_machine() -> None:
    """Raise UserError if Ray would hang on this machine or end with an error of its servers."""
    ray_env.require_short_paths()
    if (most := _raise_limit(resource.RLIMIT_NOFILE, MIN_OPEN_FILES)) is not None:
        raise ClusterError(
            f"a process may open {most} files here, Ray needs {MIN_OPEN_FILES}", hint="ulimit -n 1024"
        )
    if os.geteuid():  # the kernel does not limit root
        present = sum(
            process.info["num_threads"] or 0
            for process in psutil.process_iter(["uids", "num_threads"])
            if process.info["uids"] and process.info["uids"].real == os.getuid()
        )
        most = _raise_limit(resource.RLIMIT_NPROC, present + ray_env.MIN_THREADS)
        if most is not None:
            raise ClusterError(
                f"this user may have {most} processes and threads and has {present}, "
                f"Ray needs {ray_env.MIN_THREADS}",
                hint="ulimit -u 4096",
            )
    if os.path.isdir("/dev/shm") and not os.access("/dev/shm", os.W_OK):
        raise ClusterError(
            "/dev/shm, which Ray uses for shared memory, cannot be written", hint="mount it read-write"
        )
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        raise ClusterError(
            f"the loopback address {LOOPBACK} cannot be reached: {error.strerror or error}",
            hint="ip link set lo up",
        ) from error

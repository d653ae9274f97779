"""Run Ray on emulated hosts: a head next to the driver, and a raylet on each host, for one run.

The driver's main thread joins the namespace of the control network while the run lasts. So none of this Ray's
servers listens on an interface of the machine itself, not even on loopback.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mlbench import clock
from mlbench.clusters import node, persistent, ray_env, reaper
from mlbench.clusters.connection import Connection, WorkerResources, answers
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.plugins.emulation import cpu_share, links, topology
from mlbench.plugins.emulation.links import CONTROL, HEAD, INTERFACE, Links
from mlbench.plugins.emulation.measurement import EXTRA, EmulatedLinks
from mlbench.plugins.emulation.namespace import Namespace
from mlbench.record import temporary_folder

PORT = 6379  # of Ray's head
START_S = 120.0  # s that one of Ray's servers may take to start
POLL_S = 0.1  # s between two checks of a server's start
LABEL = "mlbench-host"  # of Ray's nodes: the number of the emulated host


@contextmanager
def connect(experiment: Experiment) -> Iterator[Connection]:
    """Yield the connection to Ray on emulated hosts with measured links. All of it ends with the block.

    Raises UserError if hosts cannot be emulated, or if a link is off its profile.
    """
    network = experiment.network
    ray_env.require_token()
    ray_env.require_short_paths()
    ray_env.require_processes()
    ray_env.allow_addresses()
    import ray  # reads its environment

    if ray.is_initialized():
        raise UserError("this process has joined a Ray already", hint="start the run as a separate command")
    with (
        temporary_folder.folder() as folder,
        links.emulated(network, experiment.workers) as emulation,
        emulation.switch.entered(),
    ):
        measured = EmulatedLinks(
            kind=emulation.kind, hosts=len(emulation.hosts), measured=emulation.measure()
        )
        try:
            _start_head(experiment, emulation.switch, folder)
            ray.init(
                address=f"{HEAD}:{PORT}",
                _node_ip_address=HEAD,
                logging_level=logging.INFO if experiment.verbose else logging.CRITICAL,
                log_to_driver=experiment.verbose,
            )
            for number in (signal.SIGINT, signal.SIGTERM):  # ray.init has put handlers below Python's
                signal.signal(number, signal.getsignal(number))
            for host in range(len(emulation.hosts)):
                _start_host(experiment, emulation, host, folder)
            yield Connection(
                **vars(resources(experiment)),
                label_selector=_hosts(experiment),
                host=HEAD,
                job_id=ray.get_runtime_context().get_job_id(),
                node_ids=[each["NodeID"] for each in ray.nodes() if each["Alive"]],
                interface=INTERFACE,
                extras={EXTRA: measured.model_dump(mode="json")},
            )
        finally:
            ray.shutdown()
            reaper.end(reaper.owner(), but=emulation.process.pid if emulation.process else None)


def resources(experiment: Experiment) -> WorkerResources:
    """Return the resources of each worker: an equal part of the CPUs of its host."""
    network, workers, machine = experiment.network, experiment.workers, node.usable_cpus()
    hosts = topology.hosts(network, workers)
    cpus = network.cpus or machine / hosts  # of a host
    threads = experiment.hardware.threads_per_worker or max(1, int(cpus * hosts / workers))
    # A host of less than one CPU has a slower CPU. Its quota is independent of the number of hosts.
    shared = workers * threads > hosts * max(1.0, cpus) if network.cpus else workers * threads > machine
    return WorkerResources({"CPU": 1.0}, "PACK", threads, shared or cpus * hosts > machine)


def _hosts(experiment: Experiment) -> list[dict[str, str]]:
    """Return the label of each rank's host."""
    network, workers = experiment.network, experiment.workers
    return [{LABEL: str(topology.host_of(rank, network, workers))} for rank in range(workers)]


def _start_head(experiment: Experiment, switch: Namespace, folder: Path) -> None:
    """Start Ray's head. All hosts' servers have their files in the folder."""
    resources = f'--resources={{"{next(iter(persistent.DRIVER_RESOURCE))}": 1}}'
    arguments = ["--head", f"--port={PORT}", "--include-dashboard=false", "--num-cpus=0", resources]
    arguments += [f"--temp-dir={folder}/{ray_env.SUBFOLDER}", f"--include-log-monitor={experiment.verbose}"]
    _ray_start(switch, HEAD, arguments, folder, lambda: answers((HEAD, PORT)))


def _start_host(experiment: Experiment, emulation: Links, host: int, folder: Path) -> None:
    """Start a host's raylet and wait: two that start at once may choose one name for their sockets."""
    import ray

    network, workers = experiment.network, experiment.workers
    arguments = [f"--address={HEAD}:{PORT}", f"--labels={LABEL}={host}"]
    # It sends the workers' output to the driver, and takes CPU time from them.
    arguments += [f"--include-log-monitor={experiment.verbose}"]
    arguments += [f"--num-cpus={workers // len(emulation.hosts)}"]
    cpus = network.cpus
    if host == topology.slow_host(network, workers):
        cpus = network.slow_cpus or cpus
    own = links.address(CONTROL, host)

    def ready() -> bool:
        return any(raylet["NodeManagerAddress"] == own and raylet["Alive"] for raylet in ray.nodes())

    _ray_start(emulation.hosts[host], own, arguments, folder, ready, host=host, cpus=cpus)


def _ray_start(
    namespace: Namespace,
    address: str,
    arguments: Sequence[str],
    folder: Path,
    ready: Callable[[], bool],
    *,
    host: int = 0,
    cpus: float | None = None,
) -> None:
    """Run `ray start --block` in a namespace. Its servers end with it, and it ends with this process.

    Waits until it is ready. Raises UserError if it ends before or takes too long.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    command += [
        f"--node-ip-address={address}",
        f"--object-store-memory={node.OBJECT_STORE_BYTES}",
        *arguments,
    ]
    if cpus is not None:
        command = cpu_share.limited(command, host=host, cpus=cpus)
    process = subprocess.Popen(
        namespace.command(command),
        env={**os.environ, **reaper.environment(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # only the driver gets Ctrl-C, and it ends Ray
    )
    deadline = clock.monotonic() + START_S
    while not ready():
        if process.poll() is not None:
            assert process.stdout is not None
            lines = process.stdout.read().strip().splitlines() or ["it printed no line"]
            raise UserError(f"Ray did not start on an emulated host: {lines[-1].strip()}")
        if clock.monotonic() > deadline:
            raise UserError(f"Ray did not start on an emulated host within {START_S:g} s")
        time.sleep(POLL_S)

"""Make a command a driver of a cluster's Ray: `connect` for one run, `join` for a sweep.

A cluster is a module of this folder, found by its name:

- `connect(experiment)`: a context manager that makes this process a driver of the cluster's Ray and yields
  the address at which workers reach it. Everything that it started ends with the block.
- `joins()`, if the cluster's Ray may run already: whether it does. Without it, `connect` starts one.
- `data_source(experiment)`, optional: a text that shows from which place its workers read the data set.
- `shares_files`: whether workers see the driver's files, so that the driver can prepare data for them.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import psutil

from mlbench.clusters import processes, ray_env, ray_private, reaper
from mlbench.config import plugins
from mlbench.config.experiment import Experiment

WHAT = {"gcs_server": "server of the cluster's state (GCS)", "raylet": "node server (raylet)"}
WORKER = "RayTrainWorker"  # Ray Train's class of workers
ANSWER_S = 5.0  # s in which a server on another node must accept a connection


@dataclass(frozen=True)
class Servers:
    """Ray's servers that this process needs.

    - local: those on this machine, by the names of their processes.
    - gcs: the address of the cluster state's server, if that is on another machine.
    """

    local: tuple[tuple[str, psutil.Process], ...] = ()
    gcs: tuple[str, int] | None = None

    @classmethod
    def find(cls) -> "Servers":
        """Return the servers of the Ray that this process has joined."""
        import ray

        session = ray_private.session_folder()
        local = processes.by_name(processes.of_session(session) if session else (), *WHAT)
        if any(name == processes.SERVERS[0] for name, _ in local):
            return cls(local)
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        return cls(local, (host.strip("[]"), int(port)))

    @classmethod
    def started_here(cls) -> "Servers":
        """Return the cluster state's server that this process has started, also before it answers."""
        own = (process for _, process in reaper.processes(reaper.owner()))
        return cls(processes.by_name(own, processes.SERVERS[0]))

    def lost(self) -> str | None:
        """Return why Ray cannot go on, in one sentence, or None while its servers live.

        Ray itself notices after a minute, and then ends this process.
        """
        for name, server in self.local:
            if not processes.lives(server):
                return f"Ray's {WHAT[name]} has died: killed, out of memory, or stopped"
        if self.gcs is not None and not any(answers(self.gcs) for _ in range(2)):
            return f"Ray's {WHAT[processes.SERVERS[0]]} at {self.gcs[0]} cannot be reached any more"
        return None


@dataclass(frozen=True)
class WorkerProcess:
    """A worker in Ray's state. Values that are unknown yet are "" or 0."""

    node: str
    address: str
    pid: int


@dataclass(frozen=True)
class WorkerResources:
    """The resources of each worker in a cluster.

    - resources: reservation of one worker, e.g. {"CPU": 1, "GPU": 1}.
    - placement: Ray's strategy for the workers' nodes, PACK or STRICT_SPREAD.
    - threads: compute threads of a worker.
    - oversubscribed: more threads than CPUs, so the times are not those of this many workers.
    """

    resources: dict[str, float]
    placement: str
    threads: int
    oversubscribed: bool


@dataclass(frozen=True)
class Connection(WorkerResources):
    """A Ray cluster with this process as a driver. Workers reach the driver at the address `host`."""

    host: str
    job_id: str
    node_ids: list[str]
    label_selector: list[dict[str, str]] | None = None  # of each rank's node; None: any
    interface: str | None = None  # for the traffic between workers; None: each finds it
    extras: dict[str, Any] = field(default_factory=dict)  # for the record, by name, as JSON types
    servers: Servers = field(default_factory=Servers)
    restarts: bool = False  # whether the run goes on without a node

    def workers(self) -> list[WorkerProcess]:
        """Return the workers' processes that Ray has begun to make, or none without Ray."""
        if not self.job_id:
            return []
        return [
            WorkerProcess(actor["Address"]["NodeID"], actor["Address"]["IPAddress"], actor["Pid"])
            for actor in ray_private.actors(self.job_id)
            if actor["ActorClassName"] == WORKER
        ]

    def lost(self) -> str | None:
        """Return why the run cannot go on, in a sentence, or None while Ray's servers and the nodes live."""
        lost = self.servers.lost()
        if lost is not None or len(self.node_ids) < 2 or self.restarts:
            return lost
        import ray

        missing = [node for node in ray.nodes() if node["NodeID"] in self.node_ids and not node["Alive"]]
        used = {worker.node for worker in self.workers()} if missing else set()
        for node in missing:
            if node["NodeID"] in used or not any(used):
                where = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
                return f"the node {where} is unreachable: it is off, or its network is down"
        return None


def load(name: str) -> ModuleType:
    """Return the module of the cluster `name`."""
    return plugins.load("cluster", name)


def offering(part: str) -> str:
    """Return the choices of clusters whose modules have a part, e.g. cluster=kuberay for `submit`."""
    names = [name for name in plugins.files("cluster") if hasattr(load(name), part)]
    return f"cluster={' or '.join(names)}" if names else "no installed cluster"


def shares_files(experiment: Experiment) -> bool:
    """Return whether the workers see this process's files."""
    return load(experiment.cluster.name).shares_files


@contextmanager
def connect(experiment: Experiment) -> Iterator[Connection]:
    """Join the cluster and reserve room for the workers. Raises UserError if they do not fit.

    With an emulated network the cluster is one of emulated hosts, which end with the block.
    """
    from mlbench.clusters import placement

    with ExitStack() as stack:
        if experiment.network.emulated:
            _configure(experiment)
            reserved = stack.enter_context(plugins.emulator().connect(experiment))
        else:
            reserved = placement.reserve(experiment, host=stack.enter_context(join(experiment)))
        yield replace(reserved, servers=Servers.find(), restarts=experiment.max_failures > 0)


def beginning(experiment: Experiment) -> str:
    """Return the display text for the first step of `connect` and `join`: a running Ray is joined."""
    cluster = load(experiment.cluster.name)
    joins = not experiment.network.emulated and getattr(cluster, "joins", bool)()
    return f"{'joining' if joins else 'starting'} Ray ({experiment.cluster.name})"


def _configure(experiment: Experiment) -> None:
    ray_env.disable_background_work()
    ray_env.configure_train(timeout_s=experiment.backend.timeout_s)


@contextmanager
def join(experiment: Experiment) -> Iterator[str]:
    """Make this process a driver of the cluster's Ray. Yield the address at which workers reach it."""
    _configure(experiment)
    with load(experiment.cluster.name).connect(experiment) as host:
        yield host


def answers(address: tuple[str, int]) -> bool:
    """Return whether a server accepts a connection within ANSWER_S."""
    try:
        socket.create_connection(address, timeout=ANSWER_S).close()
    except OSError:
        return False
    return True

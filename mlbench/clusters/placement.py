"""Check that the workers fit on the nodes of a Ray cluster, and compute the resources of each."""

import math
import time
from typing import Any

from mlbench import clock
from mlbench.clusters import node
from mlbench.clusters.connection import Connection, WorkerResources
from mlbench.config import plugins
from mlbench.config.errors import ClusterError, UserError
from mlbench.config.experiment import Experiment
from mlbench.record import cost
from mlbench.record.node_types import misfits

POLL_S = 2.0  # s between two checks whether the autoscaler has added a node
LOCAL = "local"  # the profile of this machine, with any hardware
CROWD = 16  # workers per CPU from which cluster.oversubscribe=force is needed: a guard against typing errors


def reserve(experiment: Experiment, *, host: str) -> Connection:
    """Return a worker's reservation on the joined cluster. Raises UserError if the workers do not fit.

    A cluster with `wait_s` above 0 has an autoscaler. It gets a request for nodes and has that long to add
    them.
    """
    import ray

    wait_s: float | None = getattr(experiment.cluster, "wait_s", None)
    try:
        nodes, resources = _room(experiment)
    except UserError as error:
        if wait_s is None:
            raise
        if not wait_s:
            hint = f"{error.hint}, or cluster.wait_s=SECONDS if an autoscaler adds nodes"
            raise ClusterError(error.message, hint=hint) from error
        nodes, resources = _awaited(experiment, wait_s)
    return Connection(
        **vars(resources),
        host=host,
        job_id=ray.get_runtime_context().get_job_id(),
        node_ids=[node["NodeID"] for node in nodes],
    )


def _room(experiment: Experiment) -> tuple[list[dict[str, Any]], WorkerResources]:
    """Return the existing nodes and a worker's share of them. Raises UserError if they are too few."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    return nodes, worker_resources(experiment, [node["Resources"] for node in nodes])


def _awaited(experiment: Experiment, wait_s: float) -> tuple[list[dict[str, Any]], WorkerResources]:
    """Request nodes from the autoscaler, and return the result of `_room` as soon as there are enough.

    The request would persist after the run and keep the nodes, so it is taken back. Nodes stay idle for
    minutes before they go, and the workers take them within seconds.
    """
    begin = clock.monotonic()
    try:
        while True:
            request_nodes(experiment)
            time.sleep(min(POLL_S, wait_s))
            try:
                return _room(experiment)
            except UserError as error:
                if clock.monotonic() - begin >= wait_s:
                    sentence = f"{error.message}, after its autoscaler had {wait_s:g} s to add nodes"
                    raise ClusterError(sentence, hint=error.hint) from error
    finally:
        request_nodes(None)


def request_nodes(experiment: Experiment | None) -> None:
    """Request room for the experiment's workers from Ray's autoscaler. None takes the request back."""
    from ray.autoscaler.sdk import request_resources

    bundles: list[dict[str, float]] = []
    if experiment is not None:
        hardware = experiment.hardware
        # A worker's whole share of a node, or else the autoscaler would put many on one.
        cpus = (hardware.cpus or 1) // hardware.workers_per_node if hardware.workers_per_node else 1
        worker = {"CPU": float(max(1, cpus))} | ({"GPU": 1.0} if experiment.backend.device == "cuda" else {})
        bundles = [worker] * experiment.workers
    request_resources(bundles=bundles)


def require_room(experiment: Experiment) -> None:
    """Raise UserError, before Ray is started here, for workers that can never fit on this machine.

    Also if the machine differs from its profile: times and prices under its name would be wrong.
    """
    _require_machine(experiment)
    if not gpus(experiment):  # Ray counts the free GPUs
        worker_resources(experiment, [{"CPU": float(node.usable_cpus())}])


def gpus(experiment: Experiment) -> int:
    """Return the number of GPUs for the workers. Raises UserError if the driver does not start."""
    if experiment.backend.device != "cuda":
        return 0
    devices, fault = node.gpus()
    if fault is not None:
        raise ClusterError(
            f"the driver of this machine's GPUs does not start: {fault}", hint="see nvidia-smi"
        )
    return len(devices)


def _require_machine(experiment: Experiment) -> None:
    hardware, cpus = experiment.hardware, node.usable_cpus()
    if hardware.name == LOCAL:
        return
    gpus = [gpu.name or "?" for gpu in node.gpus()[0]] if hardware.gpus else None
    faults = list(misfits(hardware, host="this machine", cpus=cpus, gpus=gpus))
    nodes = cost.nodes(hardware, experiment.workers)
    if nodes > 1 and not experiment.network.emulated:
        faults.append(f"puts {experiment.workers} workers on {nodes} nodes, this is one machine")
    if faults:
        raise ClusterError(
            f"hardware={hardware.name} {' and it '.join(faults)}",
            hint="leave hardware out to measure this machine, or use such nodes with "
            "cluster=attached, or give "
            f"hardware.cpus={cpus} hardware.gpu_model=null hardware.workers_per_node="
            f"{experiment.workers} to measure it as a deviation",
        )


def worker_resources(experiment: Experiment, nodes: list[dict[str, float]]) -> WorkerResources:
    """Return the resources of each worker on nodes with these Ray resources.

    Raises UserError if the workers do not fit. With cluster=local they may share CPUs, which the result
    states.
    """
    device = "GPU" if experiment.backend.device == "cuda" else "CPU"
    hardware, workers = experiment.hardware, experiment.workers
    allow_oversubscription = experiment.cluster.oversubscribe
    all_nodes = len(nodes)
    nodes = sorted((node for node in nodes if int(node.get(device, 0))), key=lambda node: -node.get("CPU", 0))
    capacity = sum(int(node[device]) for node in nodes)
    if workers > capacity and (device == "GPU" or not allow_oversubscription):
        raise ClusterError(
            f"workers={workers} needs {workers} {device}s, the cluster has room for {capacity} on "
            f"{all_nodes} node(s)",
            hint=(f"give workers={capacity}" if capacity else "backend=gloo trains on CPUs, or add GPU nodes")
            + (", or cluster=attached inside a Ray cluster that has them" if allow_oversubscription else ""),
        )
    if device == "CPU" and workers >= CROWD * capacity and allow_oversubscription != "force":
        raise ClusterError(
            f"workers={workers} is {workers / max(1, capacity):g} workers per CPU on {capacity} CPUs",
            hint=f"workers={capacity} have a CPU each; cluster.oversubscribe=force starts them all",
        )
    if experiment.network.emulated:
        return plugins.emulator().resources(experiment)
    workers_per_node = hardware.workers_per_node
    if workers_per_node and workers > workers_per_node * len(nodes) and not allow_oversubscription:
        raise ClusterError(
            f"hardware={hardware.name} puts {workers_per_node} worker(s) on a node, so workers={workers} do "
            f"not fit on {len(nodes)} node(s)",
            hint=f"give workers={workers_per_node * len(nodes)}, or the nodes' hardware profile",
        )
    cpus = hardware.cpus or int(max((node.get("CPU", 1) for node in nodes), default=1))
    threads = hardware.threads_per_worker or max(1, cpus // min(workers, workers_per_node or workers))
    # Ray counts ten-thousandths, to which it rounds: three of 0.66667 would be more than 2 CPUs.
    share = capacity * 10**4 // workers
    if device == "GPU":  # on a node with more GPUs than CPUs Ray would wait for whole ones
        share = min(int(1e4 * node.get("CPU", 0.0)) // int(node["GPU"]) for node in nodes)
    resources = {"CPU": min(10**4, share) / 1e4} | ({"GPU": 1.0} if device == "GPU" else {})
    if workers_per_node and not allow_oversubscription:
        # Ray fills a node before it takes the next one, so a worker reserves its whole share of a node.
        smallest = nodes[math.ceil(workers / workers_per_node) - 1].get("CPU", 0.0)
        resources["CPU"] = math.floor(smallest / workers_per_node * 1e4) / 1e4
    available = sum(node.get("CPU", 0.0) for node in nodes)
    return WorkerResources(
        resources=resources,
        placement="STRICT_SPREAD" if workers_per_node == 1 and not allow_oversubscription else "PACK",
        threads=threads,
        oversubscribed=device == "CPU" and workers * threads > available,
    )

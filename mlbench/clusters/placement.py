"""Whether the workers fit on the nodes of a Ray cluster, and what each gets."""

import math
import time
from typing import Any

from mlbench import clock
from mlbench.clusters import node
from mlbench.clusters.connection import Connection, WorkerResources
from mlbench.config import plugins
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.record import cost
from mlbench.record.node_types import misfits

POLL_S = 2.0  # s between two looks whether the autoscaler has added a node
LOCAL = "local"  # the profile that is this machine, whatever it is
CROWD = 16  # workers per CPU from which cluster.oversubscribe=force is needed: a mistyped number starts none


def reserve(experiment: Experiment, *, host: str) -> Connection:
    """Return what a worker reserves on the cluster that was joined; UserError where they do not fit.

    A cluster with `wait_s` above 0 has an autoscaler, which is asked for nodes and has that long to add them.
    """
    import ray

    wait_s: float | None = getattr(experiment.cluster, "wait_s", None)
    try:
        nodes, resources = _room(experiment)
    except UserError as error:
        if wait_s is None:
            raise
        if not wait_s:
            hint = f"{error.hint}, or cluster.wait_s=SECONDS where an autoscaler adds nodes"
            raise UserError(error.message, hint=hint) from error
        nodes, resources = _awaited(experiment, wait_s)
    return Connection(
        **vars(resources),
        host=host,
        job_id=ray.get_runtime_context().get_job_id(),
        node_ids=[node["NodeID"] for node in nodes],
    )


def _room(experiment: Experiment) -> tuple[list[dict[str, Any]], WorkerResources]:
    """Return the nodes that are there, and what a worker gets of them; UserError where they are too few."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    return nodes, worker_resources(experiment, [node["Resources"] for node in nodes])


def _awaited(experiment: Experiment, wait_s: float) -> tuple[list[dict[str, Any]], WorkerResources]:
    """Ask the autoscaler for nodes, and return what `_room` does as soon as there are enough.

    The request would stand after the run and keep the nodes, so it is taken back: nodes stay idle for minutes
    before they go, and the workers take them within seconds.
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
                    raise UserError(sentence, hint=error.hint) from error
    finally:
        request_nodes(None)


def request_nodes(experiment: Experiment | None) -> None:
    """Ask Ray's autoscaler for room for the experiment's workers; None takes the request back."""
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

    Also where the machine is not what the profile states: times and prices under its name would be nobody's.
    """
    _require_machine(experiment)
    if not gpus(experiment):  # how many GPUs are free is for Ray to say
        worker_resources(experiment, [{"CPU": float(node.usable_cpus())}])


def gpus(experiment: Experiment) -> int:
    """Return how many GPUs this machine has for the workers; UserError where the driver does not start."""
    if experiment.backend.device != "cuda":
        return 0
    devices, fault = node.gpus()
    if fault is not None:
        raise UserError(f"the driver of this machine's GPUs does not start: {fault}", hint="see nvidia-smi")
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
        raise UserError(
            f"hardware={hardware.name} {'; it '.join(faults)}",
            hint=f"leave hardware out to measure this machine, or reach such nodes by cluster=attached; "
            f"hardware.cpus={cpus} hardware.gpu_model=null hardware.workers_per_node="
            f"{experiment.workers} measure and price it all the same, as deviations",
        )


def worker_resources(experiment: Experiment, nodes: list[dict[str, float]]) -> WorkerResources:
    """Return what each worker gets of nodes with these Ray resources.

    Raises UserError where the workers do not fit; cluster=local lets them share CPUs, and the result says so.
    """
    device = "GPU" if experiment.backend.device == "cuda" else "CPU"
    hardware, workers = experiment.hardware, experiment.workers
    allow_oversubscription = experiment.cluster.oversubscribe
    all_nodes = len(nodes)
    nodes = sorted((node for node in nodes if int(node.get(device, 0))), key=lambda node: -node.get("CPU", 0))
    capacity = sum(int(node[device]) for node in nodes)
    if workers > capacity and (device == "GPU" or not allow_oversubscription):
        raise UserError(
            f"workers={workers} needs {workers} {device}s, the cluster has room for {capacity} on "
            f"{all_nodes} node(s)",
            hint=(f"say workers={capacity}" if capacity else f"add nodes with a {device}")
            + (", or cluster=attached inside a Ray cluster that has them" if allow_oversubscription else ""),
        )
    if device == "CPU" and workers >= CROWD * capacity and allow_oversubscription != "force":
        raise UserError(
            f"workers={workers} is {workers / max(1, capacity):g} workers per CPU on {capacity} CPUs",
            hint=f"workers={CROWD * capacity - 1} or fewer; cluster.oversubscribe=force insists",
        )
    if experiment.network.emulated:
        return plugins.emulator().resources(experiment)
    workers_per_node = hardware.workers_per_node
    if workers_per_node and workers > workers_per_node * len(nodes) and not allow_oversubscription:
        raise UserError(
            f"hardware={hardware.name} puts {workers_per_node} worker(s) on a node, so workers={workers} do "
            f"not fit on {len(nodes)} node(s)",
            hint=f"say workers={workers_per_node * len(nodes)}, or choose the hardware that the nodes are",
        )
    cpus = hardware.cpus or int(max((node.get("CPU", 1) for node in nodes), default=1))
    threads = hardware.threads_per_worker or max(1, cpus // min(workers, workers_per_node or workers))
    # Ray counts ten-thousandths, to which it rounds: three of 0.66667 would be more than 2 CPUs.
    share = capacity * 10**4 // workers
    if device == "GPU":  # of a node with more GPUs than CPUs Ray would wait for whole ones
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

"""Whether the workers fit on the nodes of a Ray cluster, and what each gets."""

from typing import Any

import ray

from mlbench.clusters import Connection
from mlbench.config import Experiment
from mlbench.errors import UserError


def reserve(experiment: Experiment, *, host: str) -> Connection:
    """Return what a worker reserves, or raise UserError if the cluster is too small and may not share."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    gpu_each = 1 if experiment.backend.device == "cuda" else 0
    slots = [_slots(node["Resources"], experiment, gpu_each) for node in nodes]
    fit = sum(slots)
    oversubscribed = experiment.workers > fit
    if oversubscribed and (gpu_each or not experiment.cluster.oversubscribe):
        what = "GPU" if gpu_each else "CPU"
        raise UserError(
            f"workers={experiment.workers} needs {experiment.workers} {what}s, "
            f"the cluster has room for {fit} on {len(nodes)} node(s)",
            hint=f"say workers={fit}" if fit else f"add nodes with a {what}",
        )
    on_node = min(experiment.workers, experiment.hardware.workers_per_node or experiment.workers)
    cpus = experiment.hardware.cpus or int(max(n["Resources"].get("CPU", 1) for n in nodes))
    threads = experiment.hardware.threads_per_worker or max(1, cpus // on_node)
    cpu_each = min(1.0, fit / experiment.workers) if fit else 1.0
    resources = {"CPU": cpu_each} | ({"GPU": 1.0} if gpu_each else {})
    context = ray.get_runtime_context()
    return Connection(
        resources=resources,
        threads=threads,
        oversubscribed=oversubscribed,
        host=host,
        job_id=context.get_job_id(),
        node_ids=[node["NodeID"] for node in nodes],
    )


def _slots(resources: dict[str, Any], experiment: Experiment, gpu_each: int) -> int:
    """Return how many workers a node has room for."""
    room = int(resources.get("GPU" if gpu_each else "CPU", 0))
    if experiment.hardware.workers_per_node is not None:
        room = min(room, experiment.hardware.workers_per_node)
    return room

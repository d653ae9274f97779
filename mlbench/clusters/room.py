"""Whether the workers fit on the nodes of a Ray cluster, and what each gets."""

import math

import ray

from mlbench.clusters import Connection
from mlbench.config import Experiment
from mlbench.errors import UserError


def reserve(experiment: Experiment, *, host: str) -> Connection:
    """Return what a worker reserves, or raise UserError if the cluster is too small and may not share."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    resources, threads, oversubscribed = share(experiment, [node["Resources"] for node in nodes])
    return Connection(
        resources=resources,
        threads=threads,
        oversubscribed=oversubscribed,
        host=host,
        job_id=ray.get_runtime_context().get_job_id(),
        node_ids=[node["NodeID"] for node in nodes],
    )


def share(experiment: Experiment, nodes: list[dict[str, float]]) -> tuple[dict[str, float], int, bool]:
    """Return a worker's reservation, its threads, and whether workers share CPUs; nodes are Ray's resources.

    Raises UserError where the workers do not fit; cluster=local lets them share, and its result says so.
    """
    what = "GPU" if experiment.backend.device == "cuda" else "CPU"
    hardware, workers, may_share = experiment.hardware, experiment.workers, experiment.cluster.oversubscribe
    rooms = [int(node.get(what, 0)) for node in nodes]
    fit = sum(rooms)
    oversubscribed = workers > fit
    if oversubscribed and (what == "GPU" or not may_share):
        raise UserError(
            f"workers={workers} needs {workers} {what}s, the cluster has room for {fit} "
            f"on {len(nodes)} node(s)",
            hint=_way_out(fit, what, local=may_share),
        )
    a_node = hardware.workers_per_node
    placed = sum(min(room, a_node or room) for room in rooms)
    if workers > placed and not may_share:
        raise UserError(
            f"hardware={hardware.name} puts {a_node} worker(s) on a node, so workers={workers} do not fit on "
            f"{len(nodes)} node(s)",
            hint=f"say workers={placed}, or choose the hardware that the nodes are",
        )
    reservation = {"CPU": min(1.0, fit / workers) if what == "CPU" else 1.0}
    if what == "GPU":
        reservation["GPU"] = 1.0
    if a_node and not may_share:
        # Ray fills a node before it takes the next one: a worker reserves its whole share of the node.
        whole = min(node.get("CPU", 0.0) for node, room in zip(nodes, rooms, strict=True) if room)
        reservation["CPU"] = math.floor(whole / a_node * 1e4) / 1e4  # Ray counts ten-thousandths
    cpus = hardware.cpus or int(max(node.get("CPU", 1) for node in nodes))
    threads = hardware.threads_per_worker or max(1, cpus // min(workers, a_node or workers))
    return reservation, threads, oversubscribed


def _way_out(fit: int, what: str, *, local: bool) -> str:
    fewer = f"say workers={fit}" if fit else f"add nodes with a {what}"
    return f"{fewer}, or cluster=attached inside a Ray cluster that has them" if local else fewer

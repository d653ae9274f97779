"""Whether the workers fit on the nodes of a Ray cluster, and what each gets."""

import math
from dataclasses import dataclass

import ray

from mlbench.clusters.connection import Connection
from mlbench.experiment.config import Experiment
from mlbench.experiment.errors import UserError


@dataclass(frozen=True)
class Share:
    """What each worker gets: see Connection."""

    resources: dict[str, float]
    placement: str
    threads: int
    oversubscribed: bool


def reserve(experiment: Experiment, *, host: str) -> Connection:
    """Return what a worker reserves, or raise UserError if the cluster is too small and may not share."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return Connection(
        **vars(share(experiment, [node["Resources"] for node in nodes])),
        host=host,
        job_id=ray.get_runtime_context().get_job_id(),
        node_ids=[node["NodeID"] for node in nodes],
    )


def share(experiment: Experiment, nodes: list[dict[str, float]]) -> Share:
    """Return what each worker gets of nodes with these Ray resources.

    Raises UserError where the workers do not fit; cluster=local lets them share CPUs, and the result says so.
    """
    what = "GPU" if experiment.backend.device == "cuda" else "CPU"
    hardware, workers, may_share = experiment.hardware, experiment.workers, experiment.cluster.oversubscribe
    there = len(nodes)
    nodes = sorted((node for node in nodes if int(node.get(what, 0))), key=lambda node: -node.get("CPU", 0))
    fit = sum(int(node[what]) for node in nodes)
    if workers > fit and (what == "GPU" or not may_share):
        raise UserError(
            f"workers={workers} needs {workers} {what}s, the cluster has room for {fit} on {there} node(s)",
            hint=_way_out(fit, what, local=may_share),
        )
    a_node = hardware.workers_per_node
    if a_node and workers > a_node * len(nodes) and not may_share:
        raise UserError(
            f"hardware={hardware.name} puts {a_node} worker(s) on a node, so workers={workers} do not fit on "
            f"{len(nodes)} node(s)",
            hint=f"say workers={a_node * len(nodes)}, or choose the hardware that the nodes are",
        )
    cpus = hardware.cpus or int(max((node.get("CPU", 1) for node in nodes), default=1))
    threads = hardware.threads_per_worker or max(1, cpus // min(workers, a_node or workers))
    resources = {"CPU": min(1.0, fit / workers) if what == "CPU" else 1.0}
    if what == "GPU":
        resources["GPU"] = 1.0
    if a_node and not may_share:
        # Ray fills a node before it takes the next one, so a worker reserves its whole share of a node.
        smallest = nodes[math.ceil(workers / a_node) - 1].get("CPU", 0.0)
        resources["CPU"] = math.floor(smallest / a_node * 1e4) / 1e4  # Ray counts ten-thousandths
    available = sum(node.get("CPU", 0.0) for node in nodes)
    return Share(
        resources=resources,
        placement="STRICT_SPREAD" if a_node == 1 and not may_share else "PACK",
        threads=threads,
        oversubscribed=what == "CPU" and workers * threads > available,
    )


def _way_out(fit: int, what: str, *, local: bool) -> str:
    fewer = f"say workers={fit}" if fit else f"add nodes with a {what}"
    return f"{fewer}, or cluster=attached inside a Ray cluster that has them" if local else fewer

"""Whether a run can ever be scheduled, from what the live cluster has: its quotas and nodes."""

import math
from collections.abc import Mapping, Sequence

from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.wings.kuberay.api import ApiError, Kubernetes, path
from mlbench.wings.kuberay.config import cluster_config
from mlbench.wings.kuberay.pods import (
    SUBMITTER_REQUEST,
    Object,
    head_request,
    worker_request,
    worker_selector,
)
from mlbench.wings.kuberay.rayjob import worker_pods


def require_room(api: Kubernetes, experiment: Experiment) -> None:
    """Raise UserError, with what would fit, for a run that this cluster can never schedule.

    Nodes that others use now may be free later, so what runs on them does not count; a quota does. Whoever
    may not read nodes or quotas is not told.
    """
    config = cluster_config(experiment)
    pods = worker_pods(experiment)
    worker, head = worker_request(experiment), head_request(experiment)
    for quota in _items(api, path("v1", "ResourceQuota", config.namespace)):
        _require_quota(quota, experiment, worker, head, pods)
    nodes = _items(api, path("v1", "Node"))
    if not nodes:
        return  # not readable
    _require_nodes(nodes, experiment, worker, pods)
    if not config.autoscaling and not _fitting(nodes, config.head_node_labels, head):
        raise UserError(
            f"no node can carry the head: {_words(head)}, labels {_words(config.head_node_labels)}",
            hint="label one with kubectl label node NAME mlbench/role=system, or lower cluster.head_cpus and "
            "cluster.head_memory_gib",
        )


def _require_nodes(
    nodes: Sequence[Object], experiment: Experiment, request: Mapping[str, str], pods: int
) -> None:
    selector = worker_selector(experiment)
    labelled = [node for node in nodes if _has(node, selector)]
    fitting = _fitting(nodes, selector, request)
    if cluster_config(experiment).autoscaling and (fitting or not labelled):
        return  # more of them can be added
    if len(fitting) >= pods:
        return
    what = f"workers={experiment.workers} needs {pods} node(s) with {_words(request)}"
    if not labelled:
        raise UserError(
            f"{what}; none of the {len(nodes)} node(s) has the labels {_words(selector)}",
            hint="kubectl label node NAME LABEL=VALUE, cluster.worker_node_labels={LABEL: VALUE}, or "
            "cluster.autoscaling=true where nodes are added when they are needed",
        )
    if not fitting:
        best = {name: max(_number(node, name) for node in labelled) for name in request}
        most = ", ".join(f"{_amount(name, value)} {name}" for name, value in best.items())
        raise UserError(
            f"{what}; the largest of the {len(labelled)} labelled node(s) allocates {most}",
            hint="lower cluster.worker_memory_gib, or choose the hardware that the nodes are",
        )
    each = experiment.hardware.workers_per_node or 1
    raise UserError(
        f"{what}; {len(fitting)} of them are there",
        hint=f"say workers={len(fitting) * each}, or cluster.autoscaling=true where nodes are added",
    )


def _require_quota(
    quota: Object, experiment: Experiment, worker: Mapping[str, str], head: Mapping[str, str], pods: int
) -> None:
    hard, used = quota.get("status", {}).get("hard", {}), quota.get("status", {}).get("used", {})
    each = experiment.hardware.workers_per_node or 1
    for name, limit in hard.items():
        if name == "pods":
            for_worker, for_others = 1.0, 2.0  # the head's and the submitter's
        else:
            resource = name.removeprefix("requests.").removeprefix("limits.")
            for_worker = quantity(worker.get(resource, "0"))
            for_others = sum(quantity(one.get(resource, "0")) for one in (head, SUBMITTER_REQUEST))
        left = quantity(limit) - quantity(used.get(name, "0"))
        if for_worker and for_worker * pods + for_others > left:
            fit = max(0, math.floor((left - for_others) / for_worker)) * each
            raise UserError(
                f"the quota {quota['metadata']['name']} leaves {_amount(name, left)} {name}, "
                f"workers={experiment.workers} needs {_amount(name, for_worker * pods + for_others)}",
                hint=f"say workers={fit}" if fit else "ask for a larger quota",
            )


def quantity(text: str | int | float) -> float:
    """Return a Kubernetes quantity as a number, e.g. 0.5 for 500m."""
    from kubernetes.utils import parse_quantity

    return float(parse_quantity(text))


def _fitting(nodes: Sequence[Object], labels: Mapping[str, str], request: Mapping[str, str]) -> list[Object]:
    return [
        node
        for node in nodes
        if _has(node, labels)
        and not node.get("spec", {}).get("unschedulable")
        and all(_number(node, name) >= quantity(value) for name, value in request.items())
    ]


def _has(node: Object, labels: Mapping[str, str]) -> bool:
    return labels.items() <= node["metadata"].get("labels", {}).items()


def _number(node: Object, name: str) -> float:
    return quantity(node.get("status", {}).get("allocatable", {}).get(name, "0"))


def _words(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _amount(name: str, value: float) -> str:
    return f"{value / 2**30:.3g}Gi" if "memory" in name else f"{value:g}"


def _items(api: Kubernetes, place: str) -> list[Object]:
    try:
        return api.get(place)["items"]
    except ApiError as error:
        if error.status in (403, 404):
            return []
        raise

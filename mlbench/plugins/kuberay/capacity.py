"""Check whether a run can ever be scheduled on the live cluster, by its quotas and nodes."""

from collections.abc import Mapping

from mlbench.config.errors import ClusterError
from mlbench.config.experiment import Experiment
from mlbench.plugins.kuberay import pods, shared
from mlbench.plugins.kuberay.api import ApiError, Kubernetes, path
from mlbench.plugins.kuberay.config import cluster_config
from mlbench.plugins.kuberay.pods import Object
from mlbench.plugins.kuberay.rayjob import worker_pods

# The scopes of a quota that apply to a run's pods. Others do not, e.g. of a priority (kubernetes.io/docs,
# "Resource Quotas")
SCOPES = {"NotTerminating", "NotBestEffort"}


def require_room(api: Kubernetes, experiment: Experiment) -> None:
    """Raise UserError for a run that this cluster can never schedule.

    Nodes in use may be free later, so their load does not count. A quota does. Users without the right to
    read nodes or quotas get no check.
    """
    config, count = cluster_config(experiment), worker_pods(experiment)
    worker, head = pods.worker_request(experiment), pods.head_request(experiment)
    present = config.shared is not None and shared.owners(api, config)  # a quota counts its pods as used
    for quota in () if present else _items(api, path("v1", "ResourceQuota", config.namespace)):
        spec, status = quota.get("spec", {}), quota.get("status", {})
        if spec.get("scopeSelector") or not SCOPES.issuperset(spec.get("scopes", ())):
            continue
        for name, limit in status.get("hard", {}).items():
            resource = name.removeprefix("requests.").removeprefix("limits.")
            others = sum(quantity(request.get(resource, "0")) for request in (head, pods.SUBMITTER_REQUEST))
            needed = count * quantity(worker.get(resource, "0")) + others if resource != "pods" else count + 2
            left = quantity(limit) - quantity(status.get("used", {}).get(name, "0"))
            if needed > left and (resource == "pods" or resource in worker):
                raise ClusterError(
                    f"the quota {quota['metadata']['name']} leaves {_amount(resource, left)} {name}, "
                    f"workers={experiment.workers} needs {_amount(resource, needed)}",
                    hint="use fewer workers, or request a larger quota",
                )
    nodes = _items(api, path("v1", "Node"))
    if nodes:
        _require_nodes(nodes, experiment, "the workers", pods.worker_selector(experiment), worker, count)
        _require_nodes(nodes, experiment, "the head", config.head_node_labels, head, 1)


def _require_nodes(
    nodes: list[Object],
    experiment: Experiment,
    who: str,
    labels: Mapping[str, str],
    request: Mapping[str, str],
    count: int,
) -> None:
    """Raise UserError if fewer than `count` nodes have the labels and allocate the request."""
    labelled = [
        node.get("status", {}).get("allocatable", {})
        for node in nodes
        if labels.items() <= node["metadata"].get("labels", {}).items()
        and not node.get("spec", {}).get("unschedulable")
    ]
    fitting = [
        have
        for have in labelled
        if all(quantity(have.get(name, "0")) >= quantity(value) for name, value in request.items())
    ]
    # A new node does not report its GPUs before their driver is ready.
    whole = [have for have in labelled if request.keys() <= have.keys()]
    if len(fitting) >= count or (cluster_config(experiment).autoscaling and (fitting or not whole)):
        return
    best = {name: max((quantity(have.get(name, "0")) for have in labelled), default=0.0) for name in request}
    most = ", ".join(f"{name}={_amount(name, value)}" for name, value in best.items())
    resources, own = (
        ", ".join(f"{name}={value}" for name, value in mapping.items()) for mapping in (request, labels)
    )
    raise ClusterError(
        f"{who} of workers={experiment.workers} need {count} node(s) with {resources}; of {len(nodes)} "
        f"node(s) {len(labelled)} have the labels {own}, {len(fitting)} of these are large enough"
        + (f", and the most that one allocates is {most}" if labelled and not fitting else ""),
        hint="kubectl label node NAME LABEL=VALUE, fewer workers, the nodes' hardware profile, or "
        "cluster.autoscaling=true if nodes are added",
    )


def quantity(text: str | int | float) -> float:
    """Return a Kubernetes quantity as a number, e.g. 0.5 for 500m."""
    from kubernetes.utils import parse_quantity

    return float(parse_quantity(text))


def _amount(name: str, value: float) -> str:
    return f"{value / 2**30:.3g}Gi" if "memory" in name else f"{value:g}"


def _items(api: Kubernetes, endpoint: str) -> list[Object]:
    try:
        return api.get(endpoint)["items"]
    except ApiError as error:
        if error.status in (403, 404):
            return []
        raise

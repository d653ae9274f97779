"""The pod templates of a run: head, workers and submitter, with no more rights than they need.

The security contexts keep the Pod Security Standard "restricted" (kubernetes.io/docs).
"""

from collections.abc import Mapping
from typing import Any

from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.record import stream
from mlbench.wings.kuberay.config import Config, cluster_config

Object = dict[str, Any]

RUN, ROLE = "mlbench/run", "mlbench/role"  # labels of pods: what they belong to, and worker or system
MANAGED = {"app.kubernetes.io/managed-by": "mlbench"}
ACCOUNT = "mlbench-runner"
SUBMITTER_REQUEST = {"cpu": "500m", "memory": "1Gi"}  # it submits a command and prints what that prints
DATA, RESULTS, SCRATCH = "/data", "/results", "/tmp"  # paths in the pods
SPOT_LABELS = {
    "gcp": ("cloud.google.com/gke-spot", "true"),  # GKE, "Spot VMs"
    "aws": ("eks.amazonaws.com/capacityType", "SPOT"),  # EKS, "Managed node groups"
}


def worker_request(experiment: Experiment) -> dict[str, str]:
    """Return what a worker pod asks of its node, as Kubernetes quantities."""
    gpus = {"nvidia.com/gpu": str(experiment.hardware.gpus)} if experiment.hardware.gpus else {}
    config = cluster_config(experiment)
    return {"cpu": str(experiment.hardware.cpus), "memory": gib(config.worker_memory_gib)} | gpus


def head_request(experiment: Experiment) -> dict[str, str]:
    """Return what the head's pod asks of its node, as Kubernetes quantities."""
    config = cluster_config(experiment)
    return {"cpu": f"{config.head_cpus:g}", "memory": gib(config.head_memory_gib)}


def worker_selector(experiment: Experiment) -> dict[str, str]:
    """Return the labels of the nodes that may carry workers."""
    config = cluster_config(experiment)
    labels = dict(config.worker_node_labels)
    if config.spot:
        provider = experiment.hardware.name.split("_")[0]
        if provider not in SPOT_LABELS:
            raise UserError(
                f"cluster.spot=true: no label is known for spot nodes of hardware={experiment.hardware.name}",
                hint="name your nodes' own with cluster.worker_node_labels={LABEL: VALUE} and leave spot out",
            )
        label, value = SPOT_LABELS[provider]
        labels[label] = value
    return labels


def head(experiment: Experiment, group: str) -> Object:
    """Return the template of the head's pod, whose process of the run prints its events."""
    config = cluster_config(experiment)
    container = _container(config, "ray-head", head_request(experiment), head=True)
    return pod(config, {RUN: group, ROLE: "system"}, container, node_labels=config.head_node_labels)


def workers(experiment: Experiment, group: str) -> Object:
    """Return the template of the workers' pods: one a node, and on nodes that may carry them."""
    config = cluster_config(experiment)
    labels = {RUN: group, ROLE: "worker"}
    template = pod(
        config,
        labels,
        _container(config, "ray-worker", worker_request(experiment)),
        node_labels=worker_selector(experiment),
    )
    spec = template["spec"]
    spec["tolerations"] = [
        *_tolerations(ROLE, "nvidia.com/gpu"),
        *(_tolerations(SPOT_LABELS["gcp"][0]) if config.spot else ()),
    ]
    # No two worker pods share a node, whichever run they are of: they would share what is measured.
    spec["affinity"] = {"podAntiAffinity": _together({ROLE: "worker"}, "kubernetes.io/hostname")}
    if config.topology and config.queue:
        template["metadata"]["annotations"] = {"kueue.x-k8s.io/podset-required-topology": config.topology}
    elif config.topology:
        spec["affinity"]["podAffinity"] = _together(labels, config.topology)
    return template


def submitter(config: Config, group: str) -> Object:
    """Return the template of the pod that submits the command and follows its output."""
    container = {
        "name": "ray-job-submitter",
        "image": config.image,
        "env": [{"name": "HOME", "value": SCRATCH}],
        "resources": exactly(SUBMITTER_REQUEST),
        "securityContext": restricted(),
        "volumeMounts": [{"name": "scratch", "mountPath": SCRATCH}],
    }
    template = pod(config, {RUN: group, ROLE: "system"}, container, node_labels=config.head_node_labels)
    template["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
    template["spec"]["restartPolicy"] = "Never"
    return template


def pod(config: Config, labels: Object, container: Object, *, node_labels: Mapping[str, str]) -> Object:
    """Return a pod template of one container; volumes are those that it mounts."""
    volumes: Object = {
        "scratch": {"emptyDir": {}},
        "shared-memory": {"emptyDir": {"medium": "Memory", "sizeLimit": gib(config.shm_gib)}},
        "data": claim(config.data_claim, read_only=True),
        "results": claim(config.results_claim),
    }
    return {
        "metadata": {"labels": MANAGED | labels},
        "spec": {
            "serviceAccountName": ACCOUNT,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "nodeSelector": dict(node_labels),
            "tolerations": _tolerations(ROLE),
            "containers": [container],
            "volumes": [{"name": m["name"]} | volumes[m["name"]] for m in container["volumeMounts"]],
        },
    }


def _container(config: Config, name: str, request: Mapping[str, str], *, head: bool = False) -> Object:
    mounts = {"scratch": SCRATCH, "shared-memory": "/dev/shm", "data": DATA}
    environment: list[Object] = [
        {"name": "HOME", "value": SCRATCH},  # the root file system is read-only
        {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
        {"name": "MLFLOW_DISABLE_TELEMETRY", "value": "true"},
    ]
    if head:
        environment.append({"name": stream.VARIABLE, "value": "1"})
        if config.results_claim:
            mounts["results"] = RESULTS
    container: Object = {
        "name": name,
        "image": config.image,
        "env": environment,
        "resources": exactly(request),
        "securityContext": restricted(),
        "volumeMounts": [
            {"name": volume, "mountPath": path}
            | ({"readOnly": True} if volume == "data" and config.data_claim else {})
            for volume, path in mounts.items()
        ],
    }
    if head:
        ports = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
        container["ports"] = [{"name": port, "containerPort": number} for port, number in ports.items()]
    if config.environment_secret:
        container["envFrom"] = [{"secretRef": {"name": config.environment_secret}}]
    return container


def resource(
    config: Config, api: str, kind: str, name: str, *, labels: Mapping[str, str] | None = None, **rest: Any
) -> Object:
    metadata = {"name": name, "namespace": config.namespace, "labels": MANAGED | dict(labels or {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


def claim(name: str | None, *, read_only: bool = False) -> Object:
    if name is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": name} | ({"readOnly": True} if read_only else {})}


def restricted() -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def exactly(request: Mapping[str, str]) -> Object:
    """Return requests that equal the limits: such pods are evicted last (QoS class Guaranteed)."""
    return {"requests": dict(request), "limits": dict(request)}


def _together(labels: Mapping[str, str], domain: str) -> Object:
    term = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": domain}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _tolerations(*keys: str) -> list[Object]:
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


def gib(number: float) -> str:
    return f"{number:g}Gi" if number == int(number) else f"{round(number * 1024)}Mi"

"""Build the pod templates of a run: head, workers and submitter, with the fewest rights possible.

The security contexts keep the Pod Security Standard "restricted" (kubernetes.io/docs).
"""

import math
from collections.abc import Mapping
from typing import Any

from mlbench.config.errors import ClusterError
from mlbench.config.experiment import Experiment
from mlbench.plugins.kuberay.config import Config, cluster_config, data_gib
from mlbench.record import stream
from mlbench.tasks.script import OUTPUTS, is_script

Object = dict[str, Any]

RUN, ROLE = "mlbench/run", "mlbench/role"  # labels of pods: their run or sweep, and worker or system
MANAGED = {"app.kubernetes.io/managed-by": "mlbench"}
ACCOUNT = "mlbench-runner"
# It submits a command and prints its output. A sweep has two of them, on a node with the head.
SUBMITTER_REQUEST = {"cpu": "250m", "memory": "1Gi"}
DATA, RESULTS, SCRATCH, WORK, FILES = "/data", "/results", "/tmp", "/workdir", "/files"  # paths in the pods
ARCHIVE = "working-dir.tar.gz"  # in FILES; unpacked into WORK
FILES_HASH = "mlbench/files"  # annotation: hash of the content
MOUNTS = {"scratch": SCRATCH, "shared-memory": "/dev/shm"}
# As in a local Ray: workers have the priority of everything that is measured (mlbench/clusters/ray_env.py).
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "MLFLOW_DISABLE_TELEMETRY": "true"}
# A run cannot continue elsewhere, so no autoscaler may empty its nodes to save some (kubernetes/autoscaler,
# FAQ; karpenter.sh/docs/concepts/disruption)
NO_EVICTION = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
SPOT_LABELS = {
    "gke": ("cloud.google.com/gke-spot", "true"),  # GKE, "Spot VMs"
    "aws": ("eks.amazonaws.com/capacityType", "SPOT"),  # EKS, "Managed node groups"
}


# The kernel's part of a machine's memory, as a share and in GiB (kubernetes/autoscaler,
# cluster-autoscaler/cloudprovider/gce/reserved.go, read 2026-11-25)
KERNEL_SHARE, KERNEL_GIB = 1 / 64, 0.08
# Share of the rest that GKE reserves, by parts of the memory in GiB. EKS reserves less
# (cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes, read 2026-11-24)
RESERVED = ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (math.inf, 0.02))
EVICTION_GIB = 0.1  # GiB below which the kubelet evicts, as above
SERVICES_GIB = 1.0  # GiB for the pods of the node's services: network, logs, metrics, device plugin
# Copies a folder between a bucket and the pod, with whatever identity the pod has; pyarrow makes no target
COPY = (
    "import os, sys; from pyarrow import fs; source, target = sys.argv[1:]; "
    "'://' in target or os.makedirs(target, exist_ok=True); fs.copy_files(source, target)"
)
UNPACK = "import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter='data')"


def allocatable_gib(memory_gib: float) -> int:
    """Return the whole GiB that a node with so much memory has for a pod of mlbench."""
    memory_gib -= memory_gib * KERNEL_SHARE + KERNEL_GIB
    left, reserved = memory_gib, 0.0
    for size, share in RESERVED:
        reserved += share * min(left, size)
        left -= min(left, size)
    return max(1, math.floor(memory_gib - reserved - EVICTION_GIB - SERVICES_GIB))


def worker_memory_gib(experiment: Experiment) -> float:
    """Return the memory of a worker's pod in GiB. Raises UserError if it is not given."""
    hardware, own = experiment.hardware, cluster_config(experiment).worker_memory_gib
    if own is None and hardware.memory_gib is None:
        raise ClusterError(
            f"hardware={hardware.name} has no memory size of a node",
            hint="give hardware.memory_gib=GIB, or cluster.worker_memory_gib=GIB for the pod itself",
        )
    return own or allocatable_gib(hardware.memory_gib or 0)


def worker_request(experiment: Experiment) -> dict[str, str]:
    """Return a worker pod's request to its node, as Kubernetes quantities."""
    hardware = experiment.hardware
    request = {"cpu": str(hardware.cpus), "memory": gib(worker_memory_gib(experiment))}
    if hardware.gpus:
        request[hardware.gpu_resource] = str(hardware.gpus)
    if size := data_gib(experiment):
        request["ephemeral-storage"] = gib(size)
    if pages := cluster_config(experiment).hugepages_mib:
        request["hugepages-2Mi"] = f"{pages}Mi"
    return request


def head_request(experiment: Experiment) -> dict[str, str]:
    """Return the request of the head's pod to its node, as Kubernetes quantities."""
    config = cluster_config(experiment)
    return {"cpu": f"{config.head_cpus:g}", "memory": gib(config.head_memory_gib)}


def worker_selector(experiment: Experiment) -> dict[str, str]:
    """Return the labels of the nodes that may run workers."""
    config = cluster_config(experiment)
    labels = dict(config.worker_node_labels)
    if config.spot:
        machine = experiment.hardware.machine
        provider = machine.provider if machine else ""
        if provider not in SPOT_LABELS:
            raise ClusterError(
                f"cluster.spot=true: unknown label of spot nodes for hardware={experiment.hardware.name}",
                hint="give your nodes' label with cluster.worker_node_labels={LABEL: VALUE} and remove spot",
            )
        label, value = SPOT_LABELS[provider]
        labels[label] = value
    return labels


def head(experiment: Experiment, group: str) -> Object:
    """Return the template of the head's pod, in which the run's process prints its events."""
    config = cluster_config(experiment)
    ports = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
    ray = container(
        config,
        "ray-head",
        head_request(experiment),
        MOUNTS | ({"results": RESULTS} if config.results_claim else {}) | _script_mounts(experiment),
        env=QUIET | {stream.VARIABLE: "1"},
        ports=[{"name": port, "containerPort": number} for port, number in ports.items()],
    )
    template = pod(config, {RUN: group, ROLE: "system"}, ray, node_labels=config.head_node_labels)
    _add_files(template, experiment, group)
    return merged(template, config.head_pod)


def workers(experiment: Experiment, group: str) -> Object:
    """Return the template of the workers' pods: one a node, and on nodes that may run them."""
    config = cluster_config(experiment)
    labels = {RUN: group, ROLE: "worker"}
    claims = {f"mount-{number}": str(path) for number, path in enumerate(config.mounts)}
    mounts = MOUNTS | {"data": DATA} | claims | _script_mounts(experiment)
    mounts |= {"results": RESULTS} if shares_results(experiment) else {}
    outputs = {OUTPUTS: RESULTS} if is_script(experiment.task) else {}
    ray = container(config, "ray-worker", worker_request(experiment), mounts, env=QUIET | outputs)
    # No other worker's pod is on its node, so a quota of CPU time would only throttle what is measured. For
    # the same reason a pod is not ended if it writes more than its data set takes.
    for name in ("cpu", "ephemeral-storage"):
        ray["resources"]["limits"].pop(name, None)
    for mount in ray["volumeMounts"]:
        if mount["name"] == "data" and config.data_claim:
            mount["readOnly"] = True
    template = pod(config, labels, ray, node_labels=worker_selector(experiment))
    spec = template["spec"]
    _add_files(template, experiment, group)
    if data_gib(experiment) is not None:
        folder = "" if is_script(experiment.task) else f"/{experiment.task.dataset}"
        own = {name: ray["resources"]["requests"][name] for name in ("cpu", "memory")}  # it runs before Ray
        copy = copy_container(config, f"{config.data_bucket}{folder}", f"{DATA}{folder}", own)
        spec["initContainers"] = [*spec.get("initContainers", ()), copy]
    if config.ipc_lock:  # Kubernetes gives an added capability to root alone (kubernetes/enhancements 2763)
        spec["securityContext"] |= {"runAsNonRoot": False, "runAsUser": 0}
        ray["securityContext"]["capabilities"]["add"] = ["IPC_LOCK"]
    spec["tolerations"] = [
        *_tolerations(ROLE, experiment.hardware.gpu_resource),
        *(_tolerations(SPOT_LABELS["gke"][0]) if config.spot else ()),
    ]
    # Two worker pods, even of different runs, never share a node: they would share what is measured.
    spec["affinity"] = {"podAntiAffinity": _together({ROLE: "worker"}, "kubernetes.io/hostname")}
    if config.topology and config.queue:
        template["metadata"]["annotations"] |= {"kueue.x-k8s.io/podset-required-topology": config.topology}
    elif config.topology:
        spec["affinity"]["podAffinity"] = _together(labels, config.topology)
    return merged(template, config.worker_pod)


def shares_results(experiment: Experiment) -> bool:
    """Return whether workers also write to the claim of the results: a script does, and so do restarts."""
    claim = cluster_config(experiment).results_claim
    return claim is not None and (is_script(experiment.task) or experiment.max_failures > 0)


def files(group: str) -> str:
    """Return the name of the ConfigMap with the files of a run or a sweep."""
    return f"{group}-files"


def _script_mounts(experiment: Experiment) -> dict[str, str]:
    """Return the mounts of a script: its folder, which it may write to, and a place for results."""
    if not is_script(experiment.task):
        return {}
    sent = cluster_config(experiment).working_dir is not None
    return {"work": WORK, "results": RESULTS} | ({"files": FILES} if sent else {})


def _add_files(template: Object, experiment: Experiment, group: str) -> None:
    """Make a pod unpack the sent files before Ray starts."""
    config, spec, task = cluster_config(experiment), template["spec"], experiment.task
    if not is_script(task) or config.working_dir is None:
        return
    template["metadata"]["annotations"][FILES_HASH] = task.sources
    volume = next(volume for volume in spec["volumes"] if volume["name"] == "files")
    volume["configMap"] = {"name": files(group)}
    mounts = {"scratch": SCRATCH, "work": WORK, "files": FILES}
    command = ["python", "-c", UNPACK, f"{FILES}/{ARCHIVE}", WORK]
    unpack = container(config, "unpack-files", SUBMITTER_REQUEST, mounts, secret=False, command=command)
    spec["initContainers"] = [unpack]


def submitter(config: Config, group: str) -> Object:
    """Return the template of the pod that submits the command and follows its output."""
    follower = container(config, "ray-job-submitter", SUBMITTER_REQUEST, {"scratch": SCRATCH}, secret=False)
    template = pod(config, {RUN: group, ROLE: "system"}, follower, node_labels=config.head_node_labels)
    template["spec"]["restartPolicy"] = "Never"
    return with_head_pod(config, template)


def with_head_pod(config: Config, template: Object) -> Object:
    """Return another pod's template on the head's nodes with the part of `head_pod` outside containers."""
    others = merged(config.head_pod, {"spec": {"containers": None, "initContainers": None}})
    return merged(template, others)


def merged(value: Any, change: Any) -> Any:
    """Return a value with a change merged into it, much as kubectl's strategic merge patch does.

    Objects are merged field by field, and null removes a field. An entry of a list is merged with the one of
    the same mountPath or name, else it is added. Any other value is replaced.
    """
    if isinstance(change, dict):
        old = value if isinstance(value, dict) else {}
        new = {name: merged(old.get(name), field) for name, field in change.items() if field is not None}
        return {name: field for name, field in old.items() if name not in change or name in new} | new
    if not isinstance(change, list):
        return change
    entries = list(value or ())
    for entry in change:
        keys = [key for key in ("mountPath", "name") if isinstance(entry, dict) and key in entry][:1]
        same = [number for number, old in enumerate(entries) for key in keys if old.get(key) == entry[key]]
        if same:
            entries[same[0]] = merged(entries[same[0]], entry)
        else:
            entries.append(merged(None, entry))
    return entries


def pod(config: Config, labels: Object, container: Object, *, node_labels: Mapping[str, str]) -> Object:
    """Return a pod template of one container. Its volumes are those that it mounts."""
    volumes: Object = {
        "scratch": {"emptyDir": {}},
        "shared-memory": {"emptyDir": {"medium": "Memory", "sizeLimit": shared_memory(config, container)}},
        "data": claim(config.data_claim, read_only=True),
        "results": claim(config.results_claim),
        "work": {"emptyDir": {}},
        "files": {},
        **{f"mount-{number}": claim(name) for number, name in enumerate(config.mounts.values())},
    }
    user = {} if config.user is None else {f: config.user for f in ("runAsUser", "runAsGroup", "fsGroup")}
    return {
        "metadata": {"labels": MANAGED | labels, "annotations": dict(NO_EVICTION)},
        "spec": {
            "serviceAccountName": ACCOUNT,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                **user,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "nodeSelector": dict(node_labels),
            "tolerations": _tolerations(ROLE),
            "containers": [container],
            "volumes": [{"name": m["name"]} | volumes[m["name"]] for m in container["volumeMounts"]],
        },
    }


def container(
    config: Config,
    name: str,
    request: Mapping[str, str],
    mounts: Mapping[str, str],
    *,
    env: Mapping[str, str] | None = None,
    secret: bool = True,
    **rest: Any,
) -> Object:
    """Return a container of the run's image that writes to its volumes alone (name and path in `mounts`)."""
    environment = {"HOME": SCRATCH, "TMPDIR": SCRATCH, **(env or {})}
    secrets = [{"secretRef": {"name": config.environment_secret}}] if config.environment_secret else []
    return {
        "name": name,
        "image": config.image,
        "env": [{"name": variable, "value": value} for variable, value in environment.items()],
        **({"envFrom": secrets} if secret and secrets else {}),
        "resources": {"requests": dict(request), "limits": dict(request)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": config.read_only_root,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
        **rest,
    }


def copy_container(config: Config, source: str, target: str, request: Mapping[str, str]) -> Object:
    """Return a container that copies a folder between a bucket and the volume of the data."""
    mounts = {"scratch": SCRATCH, "data": DATA}
    return container(config, "copy-data", request, mounts, command=["python", "-c", COPY, source, target])


def shared_memory(config: Config, container: Object) -> str:
    """Return the size of /dev/shm: `shm_gib`, else half of the container's memory, as in Linux."""
    if config.shm_gib is not None:
        return gib(config.shm_gib)
    limit = container["resources"]["limits"]["memory"]
    return gib(float(limit[:-2]) / (2 if limit.endswith("Gi") else 2048))


def resource(
    config: Config, api: str, kind: str, name: str, *, labels: Mapping[str, str] | None = None, **rest: Any
) -> Object:
    metadata = {"name": name, "namespace": config.namespace, "labels": MANAGED | dict(labels or {})}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


def claim(name: str | None, *, read_only: bool = False) -> Object:
    if name is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": {"claimName": name} | ({"readOnly": True} if read_only else {})}


def _together(labels: Mapping[str, str], domain: str) -> Object:
    term = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": domain}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _tolerations(*keys: str) -> list[Object]:
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


def gib(number: float) -> str:
    return f"{number:g}Gi" if number == int(number) else f"{round(number * 1024)}Mi"

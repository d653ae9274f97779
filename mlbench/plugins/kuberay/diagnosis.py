"""Diagnose the pods of a run, in plain words.

Kubernetes spreads the causes over a dozen places of a pod's status. Sources: kubernetes.io/docs, "Pod
Lifecycle" and "Disruptions" (the condition DisruptionTarget and its reasons);
cloud.google.com/kubernetes-engine/docs, "Spot VMs" (a pod ends with the reason Terminated or NodeShutdown).
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mlbench.plugins.kuberay.pods import ROLE, Object

NODE_TYPE = "ray.io/node-type"  # label that the operator gives to the pods of Ray: head or worker
# Reasons why a container does not start. The kubelet tries again at growing intervals.
WAITS = {
    "ImagePullBackOff": "its image cannot be pulled",
    "InvalidImageName": "its image has an invalid name",
    "ErrImageNeverPull": "its image is not on the node",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be started",
    "CrashLoopBackOff": "it ends as soon as it starts",
}
# Reasons of pods that went with their node.
NODE_REASONS = ("NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity")
DISRUPTIONS = {  # reasons of the condition DisruptionTarget
    "PreemptionByScheduler": "a pod of higher priority took its place",
    "DeletionByTaintManager": "its node does not answer any more",
    "EvictionByEvictionAPI": "its node was drained",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node shuts down",
}


@dataclass(frozen=True)
class Problem:
    """Why a pod will not do its part, in one sentence.

    - preempted: the node was taken from the run.
    - passing: it may be over at the next check of the pods.
    """

    sentence: str
    preempted: bool = False
    passing: bool = False


def problems(pods: Iterable[Object]) -> Iterator[Problem]:
    """Yield the problems of each of the pods."""
    for pod in pods:
        yield from _lost(pod)
        yield from _containers(pod)


def unschedulable(pods: Iterable[Object]) -> str | None:
    """Return why pods wait for a node, in the scheduler's words, or None if none does."""
    waiting = [pod for pod in pods if _condition(pod, "PodScheduled").get("reason") == "Unschedulable"]
    if not waiting:
        return None
    message = " ".join(_condition(waiting[0], "PodScheduled").get("message", "").split())
    count = f"{len(waiting)} pods wait" if len(waiting) > 1 else "1 pod waits"
    return f"{count} for a node: {message.removesuffix('.')}"


def scale_up(events: Iterable[Object], pods: Container[str]) -> str:
    """Return why the cluster's autoscaler adds no node for the pods of these names, else ""."""
    own = [
        event
        for event in events
        if event.get("reason") in ("FailedScaleUp", "NotTriggerScaleUp")
        and event["involvedObject"].get("name") in pods
    ]
    newest = max(own, key=lambda event: event.get("lastTimestamp") or "", default=None)
    return f"; {newest['reason']}: {newest['message'].strip(' .')}" if newest else ""


def vanished(before: Mapping[str, Object], now: Mapping[str, Object]) -> Iterator[Problem]:
    """Yield the pods of Ray that ran and have disappeared although the run was not ended."""
    for name, pod in before.items():
        if name not in now and ROLE in pod["metadata"].get("labels", {}) and _phase(pod) == "Running":
            yield Problem(f"{_name(pod)} is gone from {_node(pod)}", preempted=True)


def summary(pods: Iterable[Object], *, total: int) -> str:
    """Return the progress of the pods, e.g. "3 of 9 pods run, 6 start"."""
    phases = [_phase(pod) for pod in pods]
    parts = [f"{phases.count('Running')} of {total} pods run"]
    if starting := phases.count("Pending"):
        parts.append(f"{starting} start")
    return ", ".join(parts)


def placement(
    pods: Iterable[Object], nodes: Mapping[str, Object], domain: str | None
) -> list[dict[str, str]]:
    """Return each pod's place: its node with version, zone, machine type and the label `domain`."""
    rows = []
    for pod in pods:
        name = pod.get("spec", {}).get("nodeName")
        role = pod["metadata"].get("labels", {}).get(NODE_TYPE)
        if not name or not role:
            continue
        node = nodes.get(name, {})
        labels = node.get("metadata", {}).get("labels", {})
        row = {"pod": pod["metadata"]["name"], "role": role, "node": name}
        if version := node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion"):
            row["kubernetes"] = version
        named = LABELS | {"topology": domain}
        row |= {field: labels[label] for field, label in named.items() if label in labels}
        rows.append(row)
    return sorted(rows, key=lambda row: (row["role"], row["pod"]))


LABELS = {  # kubernetes.io/docs, "Well-Known Labels"; GKE and EKS for spot
    "zone": "topology.kubernetes.io/zone",
    "machine_type": "node.kubernetes.io/instance-type",
    "accelerator": "cloud.google.com/gke-accelerator",
    "gke_spot": "cloud.google.com/gke-spot",
    "eks_capacity": "eks.amazonaws.com/capacityType",
}


def _lost(pod: Object) -> Iterator[Problem]:
    status, lost = pod.get("status", {}), f"{_name(pod)} on {_node(pod)} is lost: "
    replaced = NODE_TYPE not in pod["metadata"].get("labels", {})  # by its Job, as the submitter is
    disruption = _condition(pod, "DisruptionTarget")
    if status.get("reason") == "Evicted":  # before the condition, whose reason is then that of a shutdown
        why = status.get("message", "the node was short of something")
        yield Problem(f"{_name(pod)} was evicted from {_node(pod)}: {why}", passing=replaced)
    elif disruption.get("status") == "True":
        why = DISRUPTIONS.get(disruption.get("reason", ""), disruption.get("message", "it was disrupted"))
        yield Problem(f"{lost}{why}", preempted=True, passing=replaced)
    elif status.get("reason") in NODE_REASONS:
        yield Problem(lost + (status.get("message") or status["reason"]), preempted=True, passing=replaced)


def _containers(pod: Object) -> Iterator[Problem]:
    status = pod.get("status", {})
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting", {})
        ended = [container.get(state, {}).get("terminated", {}) for state in ("state", "lastState")]
        if any(state.get("reason") == "OOMKilled" for state in ended):
            limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
            memory = limits.get("memory", "limit of")
            yield Problem(f"{_name(pod)} was killed: it needed more than its {memory} memory")
        elif waiting.get("reason") in WAITS:
            detail = f" ({waiting['message']})" if waiting.get("message") else ""
            what = f"{WAITS[waiting['reason']]}: {container.get('image', '')}{detail}"
            yield Problem(f"{_name(pod)} cannot run: {what}", passing=True)


def _condition(pod: Object, kind: str) -> Object:
    conditions = pod.get("status", {}).get("conditions", ())
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _phase(pod: Object) -> str:
    return pod.get("status", {}).get("phase", "Pending")


def _name(pod: Object) -> str:
    return f"the pod {pod['metadata']['name']}"


def _node(pod: Object) -> str:
    return f"the node {pod.get('spec', {}).get('nodeName', '?')}"

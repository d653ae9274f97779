"""The rules that KubeRay's operator applies to a RayJob or RayCluster after the API server has taken it.

It sets `ValidationFailed` on an object that breaks one, when the namespace already has it. Source: KubeRay
v1.7.0, ray-operator/controllers/ray/utils/validation.go, with the feature gates that are on by default.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from mlbench.wings.kuberay.pods import Object

MOST = {"RayJob": 47, "RayCluster": 53}  # characters of a name
DNS_1035 = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_NAME = re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
DNS_1123 = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
START_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")
GATED = {  # fields of a Ray cluster that need a feature gate which is off by default
    "networkPolicy": "RayClusterNetworkPolicy",
    "tlsOptions": "RayClusterMTLS",
    "historyServerOptions": "RayClusterHistoryServer",
}
FIRST_VERSION = {"token": (2, 52), "k8s": (2, 55), "priority": (2, 56)}  # of Ray
DELETION_ORDER = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")


def faults(item: Object) -> Iterator[str]:
    """Yield a sentence for every rule that a RayJob or RayCluster breaks."""
    metadata, spec = item["metadata"], item.get("spec", {})
    name, most = metadata.get("name", ""), MOST[item["kind"]]
    if len(name) > most:
        yield f"the name {name} has {len(name)} characters, a {item['kind']}'s may have {most}"
    if not DNS_1035.fullmatch(name):
        yield f"the name {name} is not a DNS label (RFC 1035)"
    annotations = metadata.get("annotations", {})
    if item["kind"] == "RayCluster":
        yield from _cluster_faults(spec, annotations)
        return
    yield from _job_faults(spec)
    yield from _deletion_faults(spec)
    if spec.get("rayClusterSpec"):
        yield from _cluster_faults(spec["rayClusterSpec"], annotations)


def _job_faults(spec: Object) -> Iterator[str]:
    mode, selector = spec.get("submissionMode", "K8sJobMode"), spec.get("clusterSelector", {})
    cluster = spec.get("rayClusterSpec") or {}
    if spec.get("suspend") and not spec.get("shutdownAfterJobFinishes"):
        yield "suspend needs shutdownAfterJobFinishes"
    if not cluster and not selector:
        yield "one of rayClusterSpec and clusterSelector has to be given"
    if selector:
        if spec.get("suspend"):
            yield "a RayJob with clusterSelector cannot be suspended"
        if not selector.get("ray.io/cluster"):
            yield "clusterSelector needs a name under ray.io/cluster"
        if mode == "SidecarMode":
            yield "clusterSelector does not go with SidecarMode"
    if spec.get("backoffLimit", 0) < 0:
        yield "backoffLimit is negative"
    if spec.get("backoffLimit", 0) > 0 and (selector or mode == "InteractiveMode"):
        yield "backoffLimit goes neither with clusterSelector nor with InteractiveMode"
    if mode == "SidecarMode":
        for field in ("submitterPodTemplate", "submitterConfig"):
            if field in spec:
                yield f"{field} does not go with SidecarMode"
        head = cluster.get("headGroupSpec", {}).get("template", {}).get("spec", {})
        if head.get("restartPolicy", "Never") != "Never":
            yield "the head's restartPolicy has to be Never in SidecarMode"
    if (cluster.get("authOptions") or {}).get("enableK8sTokenAuth"):
        yield "a RayJob does not support authOptions.enableK8sTokenAuth"
    for field in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if spec.get(field, 1) <= 0:
            yield f"{field} has to be positive"
    try:
        environment = yaml.safe_load(spec.get("runtimeEnvYAML", "") or "{}")
    except yaml.YAMLError:
        environment = None
    if not isinstance(environment, dict):
        yield "runtimeEnvYAML is not a YAML object"


def _deletion_faults(spec: Object) -> Iterator[str]:
    shutdown, seconds = spec.get("shutdownAfterJobFinishes", False), spec.get("ttlSecondsAfterFinished", 0)
    strategy = spec.get("deletionStrategy")
    if seconds < 0:
        yield "ttlSecondsAfterFinished is negative"
    if seconds > 0 and not shutdown:
        yield "ttlSecondsAfterFinished needs shutdownAfterJobFinishes"
    if strategy is None:
        return
    listed = strategy.get("deletionRules")
    if listed is None:
        policies = [(strategy.get(end) or {}).get("policy") for end in ("onSuccess", "onFailure")]
        if None in policies:
            yield "deletionStrategy needs both onSuccess and onFailure with a policy"
        if spec.get("clusterSelector") and {"DeleteCluster", "DeleteWorkers"} & set(policies):
            yield "a RayJob with clusterSelector may not delete the cluster or its workers"
        if "DeleteWorkers" in policies and (spec.get("rayClusterSpec") or {}).get("enableInTreeAutoscaling"):
            yield "DeleteWorkers does not go with enableInTreeAutoscaling"
        if shutdown and "DeleteNone" in policies:
            yield "DeleteNone does not go with shutdownAfterJobFinishes"
        return
    if shutdown or seconds:
        yield "deletionRules go neither with shutdownAfterJobFinishes nor with ttlSecondsAfterFinished"
    if not listed:
        yield "deletionRules are empty"
    yield from _rule_faults(spec, listed)


def _rule_faults(spec: Object, listed: list[Object]) -> Iterator[str]:
    seconds: dict[tuple[str, str], dict[str, int]] = {}
    for number, rule in enumerate(listed):
        condition, policy = rule.get("condition", {}), rule.get("policy", "")
        if condition.get("ttlSeconds", 0) < 0:
            yield f"deletionRules[{number}]: ttlSeconds is negative"
        if spec.get("clusterSelector") and policy in ("DeleteCluster", "DeleteWorkers"):
            yield f"deletionRules[{number}]: {policy} does not go with clusterSelector"
        if policy == "DeleteWorkers" and (spec.get("rayClusterSpec") or {}).get("enableInTreeAutoscaling"):
            yield f"deletionRules[{number}]: {policy} does not go with enableInTreeAutoscaling"
        for kind in {"jobStatus", "jobDeploymentStatus"} & condition.keys():
            same = seconds.setdefault((kind, condition[kind]), {})
            if policy in same:
                yield f"deletionRules[{number}] repeats {policy} for {kind} {condition[kind]}"
            same[policy] = condition.get("ttlSeconds", 0)
    for (_, status), by_policy in seconds.items():
        order = [by_policy[policy] for policy in DELETION_ORDER if policy in by_policy]
        if order != sorted(order):
            yield f"deletionRules for {status}: workers go before the cluster, and that before the RayJob"


def _cluster_faults(spec: Object, annotations: Mapping[str, str]) -> Iterator[str]:
    head = spec.get("headGroupSpec", {})
    groups = [
        ("head", head),
        *((group.get("groupName", ""), group) for group in spec.get("workerGroupSpecs", [])),
    ]
    autoscaling = bool(spec.get("enableInTreeAutoscaling"))
    environment = _environment(head)
    v2_by_environment = environment.get("RAY_enable_autoscaler_v2") in ("1", "true")
    v2 = autoscaling and (spec.get("autoscalerOptions") or {}).get("version") == "v2"
    for name, group in groups:
        yield from _group_faults(name, group)
        if autoscaling and v2 and _pod(group).get("restartPolicy", "Never") != "Never":
            yield f"{name}: restartPolicy has to be Never with autoscaler v2"
    for name, group in groups[1:]:
        least = group.get("minReplicas", 0)  # the defaults are the schema's
        most = group.get("maxReplicas", 2**31 - 1)
        if least < 0 or most < 0:
            yield f"{name}: minReplicas or maxReplicas is negative"
        if least > most:
            yield f"{name}: minReplicas is above maxReplicas"
        if group.get("suspend") and autoscaling:
            yield f"{name}: a group cannot be suspended with an autoscaler"
        if group.get("idleTimeoutSeconds") is not None:
            if group["idleTimeoutSeconds"] < 0:
                yield f"{name}: idleTimeoutSeconds is negative"
            if not v2 and not v2_by_environment:
                yield f"{name}: idleTimeoutSeconds needs autoscaler v2"
        if group.get("priority"):
            if not _at_least(spec, "priority"):
                yield f"{name}: priority needs rayVersion 2.56 or newer"
            if not v2 and not v2_by_environment:
                yield f"{name}: priority needs autoscaler v2"
    if v2_by_environment and not autoscaling:
        yield "RAY_enable_autoscaler_v2 needs enableInTreeAutoscaling"
    yield from _fault_tolerance_faults(spec, head, environment, annotations)
    yield from _token_faults(spec)
    for field, gate in GATED.items():
        if spec.get(field) is not None:
            yield f"{field} needs the operator's feature gate {gate}, which is off by default"


def _group_faults(name: str, group: Object) -> Iterator[str]:
    parameters, labels = group.get("rayStartParams", {}), group.get("labels", {})
    if not _pod(group).get("containers"):
        yield f"{name}: it needs a container"
    if group.get("resources") and any(parameters.get(parameter) for parameter in START_RESOURCES):
        yield f"{name}: resources stand both in rayStartParams and in resources"
    if "labels" in parameters:
        yield f"{name}: labels belong into the group, not into rayStartParams"
    for key, value in labels.items():
        prefix, slash, last = key.rpartition("/")
        if (slash and not DNS_1123.fullmatch(prefix)) or not LABEL_NAME.fullmatch(last):
            yield f"{name}: {key} is not the name of a label"
        if not LABEL_VALUE.fullmatch(value):
            yield f"{name}: {value} is not the value of a label"


def _fault_tolerance_faults(
    spec: Object, head: Object, environment: Mapping[str, Any], annotations: Mapping[str, str]
) -> Iterator[str]:
    options, parameters = spec.get("gcsFaultToleranceOptions"), head.get("rayStartParams", {})
    if options is not None and annotations.get("ray.io/ft-enabled"):
        yield "ray.io/ft-enabled does not go with gcsFaultToleranceOptions"
    if (
        options is None
        and annotations.get("ray.io/ft-enabled") != "true"
        and "RAY_REDIS_ADDRESS" in environment
    ):
        yield "RAY_REDIS_ADDRESS needs gcsFaultToleranceOptions"
    if options is not None:
        for variable in ("REDIS_PASSWORD", "RAY_REDIS_ADDRESS"):
            if variable in environment:
                yield f"{variable} does not go with gcsFaultToleranceOptions"
        if parameters.get("redis-password"):
            yield "redis-password does not go with gcsFaultToleranceOptions"
        if annotations.get("ray.io/external-storage-namespace"):
            yield "ray.io/external-storage-namespace does not go with gcsFaultToleranceOptions"
    if parameters.get("redis-username") or "REDIS_USERNAME" in environment:
        yield "the name of a user of Redis belongs into gcsFaultToleranceOptions"


def _token_faults(spec: Object) -> Iterator[str]:
    options = spec.get("authOptions")
    if options is None:
        return
    token = options.get("mode", "token") == "token"
    if token and not _at_least(spec, "token"):
        yield "authOptions.mode=token needs rayVersion 2.52 or newer"
    if options.get("enableK8sTokenAuth"):
        if not token:
            yield "enableK8sTokenAuth needs authOptions.mode=token"
        if not _at_least(spec, "k8s"):
            yield "enableK8sTokenAuth needs rayVersion 2.55 or newer"
        if options.get("secretName"):
            yield "enableK8sTokenAuth does not go with authOptions.secretName"


def _at_least(spec: Object, feature: str) -> bool:
    numbers = re.match(r"v?(\d+)\.(\d+)", spec.get("rayVersion") or "")
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= FIRST_VERSION[feature]


def _pod(group: Object) -> Object:
    return group.get("template", {}).get("spec", {})


def _environment(group: Object) -> dict[str, Any]:
    """Return the environment variables of a group's first container, which is Ray's."""
    container = next(iter(_pod(group).get("containers", [])), {})
    return {variable["name"]: variable.get("value") for variable in container.get("env", [])}

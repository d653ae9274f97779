"""The rules that KubeRay's operator applies to a RayJob or RayCluster after the API server has taken it.

It sets `ValidationFailed` on an object that breaks one, when the namespace already has it. Source: KubeRay
v1.7.0, ray-operator/controllers/ray/utils/validation.go, with the feature gates that are on by default. Only
rules about fields that runs have are copied, so any other field is a fault here.
"""

import re
from collections.abc import Iterator

from mlbench.plugins.kuberay.pods import Object

MOST = {"RayJob": 47, "RayCluster": 53}  # characters of a name
DNS_1035 = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
TOKEN_VERSION = (2, 52)  # of Ray
JOB = {"entrypoint", "entrypointNumCpus", "submissionMode", "submitterPodTemplate", "submitterConfig"}
JOB |= {"backoffLimit", "activeDeadlineSeconds", "preRunningDeadlineSeconds", "shutdownAfterJobFinishes"}
JOB |= {"ttlSecondsAfterFinished", "clusterSelector", "rayClusterSpec"}
CLUSTER = {"rayVersion", "authOptions", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
GROUP = {"groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template"}


def faults(item: Object) -> Iterator[str]:
    """Yield a sentence for every rule that a RayJob or RayCluster breaks."""
    name, most, spec = item["metadata"].get("name", ""), MOST[item["kind"]], item.get("spec", {})
    if len(name) > most:
        yield f"the name {name} has {len(name)} characters, a {item['kind']}'s may have {most}"
    if not DNS_1035.fullmatch(name):
        yield f"the name {name} is not a DNS label (RFC 1035)"
    if item["kind"] == "RayJob":
        yield from _job_faults(spec)
    cluster = spec if item["kind"] == "RayCluster" else spec.get("rayClusterSpec")
    if cluster:
        yield from _cluster_faults(cluster)


def _unknown(fields: Object, known: set[str]) -> Iterator[str]:
    for name in fields.keys() - known:
        yield f"the field {name} is not known here"


def _job_faults(spec: Object) -> Iterator[str]:
    yield from _unknown(spec, JOB)
    selector = spec.get("clusterSelector", {})
    if not spec.get("rayClusterSpec") and not selector:
        yield "one of rayClusterSpec and clusterSelector has to be given"
    if selector and not selector.get("ray.io/cluster"):
        yield "clusterSelector needs a name under ray.io/cluster"
    if spec.get("backoffLimit", 0) < 0:
        yield "backoffLimit is negative"
    if spec.get("submissionMode") == "SidecarMode":
        for field in {"submitterPodTemplate", "submitterConfig", "clusterSelector"} & spec.keys():
            yield f"{field} does not go with SidecarMode"
    if ((spec.get("rayClusterSpec") or {}).get("authOptions") or {}).get("enableK8sTokenAuth"):
        yield "a RayJob does not support authOptions.enableK8sTokenAuth"
    for field in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if spec.get(field, 1) <= 0:
            yield f"{field} has to be positive"
    seconds = spec.get("ttlSecondsAfterFinished", 0)
    if seconds < 0:
        yield "ttlSecondsAfterFinished is negative"
    if seconds > 0 and not spec.get("shutdownAfterJobFinishes"):
        yield "ttlSecondsAfterFinished needs shutdownAfterJobFinishes"


def _cluster_faults(spec: Object) -> Iterator[str]:
    yield from _unknown(spec, CLUSTER)
    numbers = re.match(r"v?(\d+)\.(\d+)", spec.get("rayVersion") or "")
    token = (spec.get("authOptions") or {}).get("mode") == "token"
    if token and (numbers is None or (int(numbers[1]), int(numbers[2])) < TOKEN_VERSION):
        yield "authOptions.mode=token needs rayVersion 2.52 or newer"
    for group in (spec.get("headGroupSpec", {}), *spec.get("workerGroupSpecs", [])):
        yield from _unknown(group, GROUP)
        if not group.get("template", {}).get("spec", {}).get("containers"):
            yield f"{group.get('groupName', 'head')}: it needs a container"
        if not 0 <= group.get("minReplicas", 0) <= group.get("maxReplicas", 0):
            yield f"{group.get('groupName')}: minReplicas is negative or above maxReplicas"

"""Share one Ray cluster between the runs of a sweep with nodes of one shape. It grows from run to run.

Its owner is an idle RayJob, so KubeRay itself ends it after `cluster.shared_limit_s`, even if it is
forgotten. The runs' RayJobs select its RayCluster, which gets more workers if a run needs them.
"""

import hashlib
import json
import time
from typing import Any

from mlbench import clock
from mlbench.config.errors import ClusterError
from mlbench.config.experiment import Experiment
from mlbench.plugins.kuberay import diagnosis, rayjob
from mlbench.plugins.kuberay.api import Kubernetes, path
from mlbench.plugins.kuberay.config import Config, cluster_config, provision_s
from mlbench.plugins.kuberay.objects import create_owned, delete, patiently
from mlbench.plugins.kuberay.pods import RUN

SHARED = "mlbench/shared"  # label: the sweep's name for its Ray clusters
POLL_S = 2.0  # s between two checks whether the workers are ready


def ensure(api: Kubernetes, experiment: Experiment) -> tuple[str, str]:
    """Return the name of the RayJob that owns the Ray cluster, and of its RayCluster with enough workers.

    A Ray cluster of another shape is deleted first: it would cost money while idle. The end of a deletion
    under way is awaited. Raises UserError if the workers do not come within `cluster.provision_s`, and
    SubmissionLost if a deletion lasts too long.
    """
    config = cluster_config(experiment)
    assert config.shared is not None
    owner = f"{config.shared}-{shape(experiment)}"
    for name, ends in owners(api, config).items():
        if name != owner or ends:
            delete(api, path("ray.io/v1", "RayJob", config.namespace, name))
    if owner not in owners(api, config):
        items = rayjob.shared_objects(experiment, name=owner, labels={SHARED: config.shared})
        create_owned(api, items)
    endpoint = path("ray.io/v1", "RayJob", config.namespace, owner)
    provision = provision_s(experiment)
    end = clock.monotonic() + provision
    workers = rayjob.worker_pods(experiment)
    ray_cluster = ""
    while clock.monotonic() < end:
        status = patiently(lambda: api.get(endpoint)).get("status", {})
        if status.get("jobDeploymentStatus") in ("Failed", "ValidationFailed", "Complete"):
            raise ClusterError(
                f"the Ray cluster {owner} of the sweep has ended: {status.get('message', '')}",
                hint=f"`kubectl delete rayjob {owner}` lets the next run make another",
            )
        ray_cluster = status.get("rayClusterName") or ""
        if ray_cluster and _resized(api, config, ray_cluster, workers):
            return owner, ray_cluster
        time.sleep(POLL_S)
    query = {"labelSelector": f"{RUN}={owner}"}
    waiting = diagnosis.unschedulable(api.get(path("v1", "Pod", config.namespace), **query)["items"])
    raise ClusterError(
        f"the Ray cluster {ray_cluster or owner} did not get {workers} worker(s) within {provision} s"
        + (f": {waiting}" if waiting else ""),
        hint="kubectl get pods shows the reason",
    )


def _resized(api: Kubernetes, config: Config, name: str, workers: int) -> bool:
    """Request this number of workers if it differs. Return whether they run."""
    endpoint = path("ray.io/v1", "RayCluster", config.namespace, name)
    items = api.get(path("ray.io/v1", "RayCluster", config.namespace))["items"]
    ray_cluster: Any = next((item for item in items if item["metadata"]["name"] == name), None)
    if ray_cluster is None:
        return False
    groups = ray_cluster["spec"]["workerGroupSpecs"]
    if groups[0].get("replicas") != workers:
        size = dict.fromkeys(rayjob.SIZE, workers)
        api.patch(endpoint, {"spec": {"workerGroupSpecs": [groups[0] | size]}})
        return False
    status = ray_cluster.get("status", {})
    return status.get("state") == "ready" and status.get("availableWorkerReplicas") == workers


def shape(experiment: Experiment) -> str:
    """Return a hash of the nodes and pods of a run, without their number."""
    spec = rayjob.ray_cluster_spec(experiment, "")
    for group in spec["workerGroupSpecs"]:
        for field in rayjob.SIZE:
            del group[field]
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:6]


def owners(api: Kubernetes, config: Config) -> dict[str, bool]:
    """Return the owner RayJobs of the sweep's Ray clusters, and whether each is being deleted."""
    query = {"labelSelector": f"{SHARED}={config.shared}"}
    endpoint = path("ray.io/v1", "RayJob", config.namespace)
    items = patiently(lambda: api.get(endpoint, **query)["items"])
    return {item["metadata"]["name"]: "deletionTimestamp" in item["metadata"] for item in items}


def sweep_order(experiment: Experiment) -> tuple[str, int]:
    """Return the sort key of a sweep's runs: one shape after the other, few nodes first."""
    return shape(experiment), rayjob.worker_pods(experiment)


def end_sweep(experiment: Experiment) -> None:
    """Delete the Ray clusters of a sweep, if they still exist."""
    config = cluster_config(experiment)
    api = Kubernetes(config.context)
    for name in owners(api, config):
        delete(api, path("ray.io/v1", "RayJob", config.namespace, name))

"""Build the Kubernetes objects of one run as plain values: a RayJob (ray.io/v1) and the objects around it.

This module does not connect to a cluster: equal arguments give equal objects. Field by field: KubeRay v1.7.0,
ray-operator/apis/ray/v1.
"""

import datetime
import math
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from mlbench import clock
from mlbench.clusters import node
from mlbench.config import resolved
from mlbench.config.compose import compose
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import ClusterError
from mlbench.config.experiment import Experiment
from mlbench.plugins.kuberay import pods, working_dir
from mlbench.plugins.kuberay.config import (
    Config,
    cluster_config,
    limit_s,
    provision_s,
    require_data,
    require_fabric,
    require_kernels,
)
from mlbench.plugins.kuberay.pods import MANAGED, RUN, Object
from mlbench.record import stream
from mlbench.tasks.script import is_script

# Label of the operator's pods: in its chart, and in its kustomize manifests (KubeRay v1.7.0, config/manager)
OPERATOR = {"key": "app.kubernetes.io/name", "operator": "In", "values": ["kuberay-operator", "kuberay"]}
# Not SidecarMode: the container that KubeRay 1.7 adds to the head has no security context, so that the Pod
# Security Standard "restricted" refuses the head's pod.
SUBMISSION = "K8sJobMode"
# Annotations: for people, and for commands that attach
COMMAND, SEED, EXPERIMENT = "mlbench/command", "mlbench/seed", "mlbench/experiment"
SIZE = ("replicas", "minReplicas", "maxReplicas")  # fields of a RayCluster's group of workers
# Fields for the place of a run, which differs in the pod.
HERE = ("data_root", "output_root", "tracking_uri", "seed", "force", "hydra")


def manifest(experiment: Experiment, overrides: Sequence[str]) -> list[Object]:
    """Return the objects of a new run with a fresh name and, if none is given, a fresh seed."""
    seed = secrets.randbelow(2**31) if experiment.seed is None else experiment.seed
    own = run_objects(experiment, overrides, name=run_name(experiment), seed=seed)
    return [*surroundings(experiment), *own]


def run_name(experiment: Experiment) -> str:
    """Return a new name, a DNS label of at most 47 characters. Names sort by time within a task."""
    stamp = "".join(filter(str.isdigit, clock.iso(clock.wall())[2:19]))
    task = "".join(c if c.isalnum() else "-" for c in experiment.task.name.lower())[:12].strip("-")
    return f"mlb-{task}-{experiment.workers}-{stamp}-{secrets.token_hex(2)}"


def _submission_time(name: str) -> list[str]:
    """Return the words that give the command its nodes' request time, from the stamp in the run's name.

    The whole bill of a run begins there (mlbench/record/cost.py).
    """
    stamp = re.search(r"-(\d{12})-[0-9a-f]{4}$", name)
    if stamp is None:
        return []
    then = datetime.datetime.strptime(stamp[1], "%y%m%d%H%M%S").replace(tzinfo=datetime.UTC)
    return [f"{stream.SUBMITTED}={then.timestamp():.0f}"]


def surroundings(experiment: Experiment) -> list[Object]:
    """Return the objects that all runs of a namespace share. A second creation changes nothing."""
    config = cluster_config(experiment)
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": config.namespace,
                "labels": MANAGED | {"pod-security.kubernetes.io/enforce": "restricted"},
            },
        },
        # The pods of a run send the API server no requests, so their account has no rights and no token.
        pods.resource(config, "v1", "ServiceAccount", pods.ACCOUNT, automountServiceAccountToken=False),
        pods.resource(
            config,
            "rbac.authorization.k8s.io/v1",
            "Role",
            "mlbench-submitter",  # for users who submit runs: all rights that mlbench needs in a namespace
            rules=[
                _rule("ray.io", ["rayjobs", "rayclusters"], "create get list watch patch delete"),
                _rule("networking.k8s.io", ["networkpolicies"], "create get delete"),
                _rule("", ["configmaps"], "create get"),
                _rule("", ["pods", "events", "resourcequotas", "persistentvolumeclaims"], "get list watch"),
                _rule("batch", ["jobs"], "create get list watch delete"),
                _rule("", ["pods/log"], "get"),
            ],
        ),
    ]


def run_objects(
    experiment: Experiment,
    overrides: Sequence[str],
    *,
    name: str,
    seed: int,
    group: str | None = None,
    ray_cluster: str | None = None,
) -> list[Object]:
    """Return a run's objects, the RayJob last.

    `ray_cluster` is a RayCluster that runs already, whose pods have the label `group` (see `shared_objects`).
    None: the run has a separate one.
    """
    config = cluster_config(experiment)
    require_data(experiment)
    group = group or name
    words = own_words(overrides)
    inside = in_pod(experiment, seed=seed)
    variables = [*_submission_time(name), resolved.assignment(inside, words)]
    command, limit = ["env", *variables, "python", "-m", "mlbench.run"], limit_s(experiment)
    if config.shared and limit > config.shared_limit_s:
        raise ClusterError(
            f"cluster.shared_limit_s={config.shared_limit_s} ends the sweep's Ray before a run that may "
            f"take {limit} s",
            hint="raise cluster.shared_limit_s to the duration of all runs",
        )
    spec = _spec(experiment, group, command, limit_s=limit)
    spec["submitterConfig"] = {"backoffLimit": 2}  # another attempt only follows the log again
    if ray_cluster:
        spec["clusterSelector"] = {"ray.io/cluster": ray_cluster}
    else:
        spec["shutdownAfterJobFinishes"] = True
        spec["ttlSecondsAfterFinished"] = config.keep_s
        spec["rayClusterSpec"] = ray_cluster_spec(experiment, group)
    labels = {
        "mlbench/task": experiment.task.name,
        "mlbench/workers": str(experiment.workers),
        RUN: group,
        **({"kueue.x-k8s.io/queue-name": config.queue} if config.queue and not ray_cluster else {}),
    }
    job = pods.resource(config, "ray.io/v1", "RayJob", name, labels=labels, spec=spec)
    outside = inside.model_copy(update={"cluster": config})
    annotations = {COMMAND: shlex.join(words), SEED: str(seed), EXPERIMENT: resolved.dumps(outside, words)}
    job["metadata"]["annotations"] = annotations
    return [job] if ray_cluster else [*_beside(experiment, name), job]


def shared_objects(experiment: Experiment, *, name: str, labels: Mapping[str, str]) -> list[Object]:
    """Return the objects of an idle RayJob that keeps a Ray cluster for other runs, the RayJob last."""
    config = cluster_config(experiment)
    wait = f"import time; time.sleep({config.shared_limit_s})"
    spec = _spec(experiment, name, ["python", "-c", wait], limit_s=config.shared_limit_s)
    spec |= {"shutdownAfterJobFinishes": True, "rayClusterSpec": ray_cluster_spec(experiment, name)}
    queue = {"kueue.x-k8s.io/queue-name": config.queue} if config.queue else {}
    own = {RUN: name, **labels, **queue}
    job = pods.resource(config, "ray.io/v1", "RayJob", name, labels=own, spec=spec)
    return [*_beside(experiment, name), job]


def _spec(experiment: Experiment, group: str, command: Sequence[str], *, limit_s: int) -> Object:
    return {
        "entrypoint": shlex.join(command),
        "entrypointNumCpus": 0,
        "submissionMode": SUBMISSION,
        "submitterPodTemplate": pods.submitter(cluster_config(experiment), group),
        "backoffLimit": 0,  # another attempt is another run
        "activeDeadlineSeconds": limit_s,
        "preRunningDeadlineSeconds": provision_s(experiment),
    }


def in_pod(experiment: Experiment, *, seed: int | None) -> Experiment:
    """Return the experiment as the pod's command measures it: values composed here, places of the pod."""
    results = pods.RESULTS if cluster_config(experiment).results_claim else f"{pods.SCRATCH}/runs"
    changes = {"data_root": Path(pods.DATA), "output_root": Path(results), "seed": seed, "force": True}
    changes |= {"cluster": compose(["cluster=attached"]).cluster, "tracking_uri": tracking_uri(experiment)}
    if is_script(task := experiment.task):
        changes["task"] = task.model_copy(update={"cwd": working_dir.folder_in_pod(experiment)})
    return experiment.model_copy(update=changes)


def own_words(overrides: Sequence[str]) -> list[str]:
    """Return the words that do not describe this machine, whose paths and passwords are private."""
    return [word for word in overrides if word.split("=")[0].split(".")[0] not in HERE]


def tracking_uri(experiment: Experiment) -> str | None:
    """Return the MLflow server for the pods, or None if this machine writes the run to its store."""
    uri = experiment.tracking_uri
    if uri and uri.startswith(("http://", "https://")):
        if without_credentials(uri) != uri:
            raise ClusterError(
                "tracking_uri holds a password, which would be readable in the RayJob",
                hint="put MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD into the Secret "
                "of cluster.environment_secret",
            )
        return uri
    return None


def worker_pods(experiment: Experiment) -> int:
    """Return how many worker pods a run needs, one a node. Raises UserError if hardware= has no number."""
    hardware = experiment.hardware
    if hardware.cpus is None or hardware.workers_per_node is None:
        raise ClusterError(
            f"hardware={hardware.name} lacks the size of a node, which cluster=kuberay needs",
            hint="choose a profile with cpus and workers_per_node, e.g. hardware=gcp_n1_standard_4",
        )
    require_kernels(hardware)
    nodes = math.ceil(experiment.workers / hardware.workers_per_node)
    require_fabric(hardware, nodes, cluster_config(experiment).worker_pod)
    return nodes


def ray_cluster_spec(experiment: Experiment, group: str) -> Object:
    """Return the spec of a Ray cluster with a node for each worker pod."""
    workers = worker_pods(experiment)
    store = {"object-store-memory": str(node.OBJECT_STORE_BYTES)}
    return {
        "rayVersion": version("ray"),
        "authOptions": {"mode": "token"},  # KubeRay makes the Secret, and deletes it with the RayCluster
        "enableInTreeAutoscaling": False,  # a point of a speed-up has exactly this many nodes
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0", **store},
            "template": pods.head(experiment, group),
        },
        "workerGroupSpecs": [
            {
                "groupName": "workers",
                **dict.fromkeys(SIZE, workers),
                "numOfHosts": 1,
                "rayStartParams": {"num-cpus": str(experiment.hardware.cpus), **store},
                "template": pods.workers(experiment, group),
            }
        ],
    }


def _beside(experiment: Experiment, group: str) -> list[Object]:
    """Return the objects that a Ray cluster's pods need and its RayJob owns."""
    files = working_dir.config_map(experiment, group)
    return [_network_policy(cluster_config(experiment), group), *([files] if files else [])]


def _network_policy(config: Config, group: str) -> Object:
    """Allow connections to a run's pods only from pods of the same run and the operator."""
    spec = {
        "podSelector": {"matchLabels": {RUN: group}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": {"matchLabels": {RUN: group}}}]},
            {
                "from": [{"namespaceSelector": {}, "podSelector": {"matchExpressions": [OPERATOR]}}],
                "ports": [{"port": 8265, "protocol": "TCP"}],
            },
        ],
    }
    return pods.resource(
        config, "networking.k8s.io/v1", "NetworkPolicy", group, labels={RUN: group}, spec=spec
    )


def _rule(group: str, resources: list[str], verbs: str) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs.split()}

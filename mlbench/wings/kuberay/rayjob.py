"""The Kubernetes objects of one run, as plain values: a RayJob (ray.io/v1) and what it needs around it.

Nothing here talks to a cluster: equal arguments give equal objects. Field by field: KubeRay v1.7.0,
ray-operator/apis/ray/v1.
"""

import datetime
import math
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version

from mlbench import clock
from mlbench.clusters import node
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.record import stream
from mlbench.wings.kuberay import pods
from mlbench.wings.kuberay.config import Config, cluster_config, require_data, require_fabric, require_kernels
from mlbench.wings.kuberay.pods import MANAGED, RUN, Object

# Label of the operator's pods: in its chart, and in its kustomize manifests (KubeRay v1.7.0, config/manager)
OPERATOR = {"key": "app.kubernetes.io/name", "operator": "In", "values": ["kuberay-operator", "kuberay"]}
# Not SidecarMode: the container that KubeRay 1.7 adds to the head has no security context, so that the Pod
# Security Standard "restricted" refuses the head's pod.
SUBMISSION = "K8sJobMode"
COMMAND, SEED = "mlbench/command", "mlbench/seed"  # annotations, by which a command attaches
SIZE = ("replicas", "minReplicas", "maxReplicas")  # fields of a RayCluster's group of workers
# Fields that say where a run is carried out, which differs in the pod.
HERE = ("data_root", "output_root", "tracking_uri", "seed", "force")


def manifest(experiment: Experiment, overrides: Sequence[str]) -> list[Object]:
    """Return the objects of a new run with a fresh name and, where none is given, a fresh seed."""
    seed = secrets.randbelow(2**31) if experiment.seed is None else experiment.seed
    own = run_objects(experiment, overrides, name=run_name(experiment), seed=seed)
    return [*surroundings(experiment), *own]


def run_name(experiment: Experiment) -> str:
    """Return a new name: it sorts by time within a task, and is a DNS label of at most 47 characters."""
    stamp = "".join(filter(str.isdigit, clock.iso(clock.wall())[2:19]))
    task = "".join(c if c.isalnum() else "-" for c in experiment.task.name.lower())[:12].strip("-")
    return f"mlb-{task}-{experiment.workers}-{stamp}-{secrets.token_hex(2)}"


def _submission_time(name: str) -> list[str]:
    """Return the words that tell the command when its nodes were asked for, by the stamp in the run's name.

    The whole bill of a run begins there (mlbench/record/cost.py).
    """
    stamp = re.search(r"-(\d{12})-[0-9a-f]{4}$", name)
    if stamp is None:
        return []
    then = datetime.datetime.strptime(stamp[1], "%y%m%d%H%M%S").replace(tzinfo=datetime.UTC)
    return ["env", f"{stream.SUBMITTED}={then.timestamp():.0f}"]


def surroundings(experiment: Experiment) -> list[Object]:
    """Return what all runs of a namespace share; making it again changes nothing."""
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
        # The pods of a run ask the API server for nothing, so their account has no rights and no token.
        pods.resource(config, "v1", "ServiceAccount", pods.ACCOUNT, automountServiceAccountToken=False),
        pods.resource(
            config,
            "rbac.authorization.k8s.io/v1",
            "Role",
            "mlbench-submitter",  # for the people who submit runs: all that this package asks of a namespace
            rules=[
                _rule("ray.io", ["rayjobs", "rayclusters"], "create get list watch patch delete"),
                _rule("networking.k8s.io", ["networkpolicies"], "create get delete"),
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
    """Return a run's own objects, the RayJob last.

    `ray_cluster` is a RayCluster that runs already, whose pods have the label `group` (see `shared_objects`);
    None: the run has its own.
    """
    config = cluster_config(experiment)
    require_data(experiment)
    group = group or name
    uri = tracking_uri(experiment)
    command = [
        *("python", "-m", "mlbench.run", *pod_overrides(overrides), "cluster=attached", f"seed={seed}"),
        *("force=true", f"data_root={pods.DATA}"),
        f"output_root={pods.RESULTS if config.results_claim else f'{pods.SCRATCH}/runs'}",
        *([f"tracking_uri={uri}"] if uri else []),
    ]
    spec = _spec(config, group, [*_submission_time(name), *command], limit_s=config.limit_s)
    spec["submitterConfig"] = {"backoffLimit": 2}  # it only follows the log again
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
    job["metadata"]["annotations"] = {COMMAND: shlex.join(_own_words(overrides)), SEED: str(seed)}
    return [job] if ray_cluster else [_network_policy(config, name), job]


def shared_objects(experiment: Experiment, *, name: str, labels: Mapping[str, str]) -> list[Object]:
    """Return a RayJob that only waits and so keeps a Ray cluster for other runs, the RayJob last."""
    config = cluster_config(experiment)
    wait = f"import time; time.sleep({config.shared_limit_s})"
    spec = _spec(config, name, ["python", "-c", wait], limit_s=config.shared_limit_s)
    spec |= {"shutdownAfterJobFinishes": True, "rayClusterSpec": ray_cluster_spec(experiment, name)}
    queue = {"kueue.x-k8s.io/queue-name": config.queue} if config.queue else {}
    own = {RUN: name, **labels, **queue}
    job = pods.resource(config, "ray.io/v1", "RayJob", name, labels=own, spec=spec)
    return [_network_policy(config, name), job]


def _spec(config: Config, group: str, command: Sequence[str], *, limit_s: int) -> Object:
    return {
        "entrypoint": shlex.join(command),
        "entrypointNumCpus": 0,
        "submissionMode": SUBMISSION,
        "submitterPodTemplate": pods.submitter(config, group),
        "backoffLimit": 0,  # another attempt is another run
        "activeDeadlineSeconds": limit_s,
        "preRunningDeadlineSeconds": config.provision_s,
    }


def pod_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the words that mean the same in a pod."""
    return [word for word in _own_words(overrides) if _group(word) != "cluster"]


def _own_words(overrides: Sequence[str]) -> list[str]:
    """Return the words that do not tell of this machine, whose paths and passwords are nobody's business."""
    return [word for word in overrides if _group(word) not in HERE]


def _group(word: str) -> str:
    return word.split("=")[0].split(".")[0]


def tracking_uri(experiment: Experiment) -> str | None:
    """Return the MLflow server that pods write to; None: this machine writes the run to its own store."""
    uri = experiment.tracking_uri
    if uri and uri.startswith(("http://", "https://")):
        if without_credentials(uri) != uri:
            raise UserError(
                "tracking_uri holds a password, which would be readable in the RayJob",
                hint="put MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD into a Secret, and name that "
                "with cluster.environment_secret",
            )
        return uri
    return None


def worker_pods(experiment: Experiment) -> int:
    """Return how many worker pods a run needs: one a node; UserError where hardware= does not say."""
    hardware = experiment.hardware
    if hardware.cpus is None or hardware.workers_per_node is None:
        raise UserError(
            f"hardware={hardware.name} does not say what a node has, which cluster=kuberay asks for",
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
                "rayStartParams": {**store},
                "template": pods.workers(experiment, group),
            }
        ],
    }


def _network_policy(config: Config, group: str) -> Object:
    """Let only the pods of the same run, and the operator, open connections to a run's pods."""
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

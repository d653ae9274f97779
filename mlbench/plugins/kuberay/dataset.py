"""Provide official data in a cluster: check its claim, and fill a claim or a bucket by a Job."""

import hashlib
import re
import shlex
from collections.abc import Callable, Sequence

from mlbench.config import resolved
from mlbench.config.errors import ClusterError
from mlbench.config.experiment import Experiment
from mlbench.plugins.kuberay import diagnosis, pods, rayjob
from mlbench.plugins.kuberay.api import ApiError, Kubernetes, path, path_of
from mlbench.plugins.kuberay.config import cluster_config
from mlbench.plugins.kuberay.objects import create, create_surroundings, delete, patiently
from mlbench.plugins.kuberay.pods import DATA, Object
from mlbench.tasks import registry

MANY_NODES = ("ReadOnlyMany", "ReadWriteMany")  # access modes of a volume that several nodes may mount
KEEP_S = 3600  # s that Kubernetes keeps an ended Job that no command has deleted


def source(experiment: Experiment) -> str:
    """Return the place from which the workers read the data set, as text."""
    config, name = cluster_config(experiment), experiment.task.dataset
    if config.data_bucket:
        return f"{config.data_bucket}/{name}, copied to each worker's node"
    if config.data_claim:
        return f"{name} of the claim {config.data_claim}"
    return f"{name}, made on each worker's node"


def require_claims(api: Kubernetes, experiment: Experiment) -> None:
    """Raise UserError for a claim that is missing, or that the pods of the run cannot all mount."""
    config, nodes = cluster_config(experiment), rayjob.worker_pods(experiment)
    claims = {name: (nodes, MANY_NODES[1:]) for name in config.mounts.values()}
    claims |= {config.data_claim: (nodes, MANY_NODES)} if config.data_claim else {}
    if config.results_claim:  # the head's pod mounts it in any case
        claims[config.results_claim] = (nodes + 1 if pods.shares_results(experiment) else 1, MANY_NODES[1:])
    for name, (count, wanted) in claims.items():
        try:
            claim = api.get(path("v1", "PersistentVolumeClaim", config.namespace, name))
        except ApiError as error:
            if error.status == 403:
                continue  # users without the right to read it get no check
            if error.status != 404:
                raise
            raise ClusterError(
                f"the namespace {config.namespace} has no PersistentVolumeClaim {name}",
                hint="create it, then fill it with mlbench cluster data prepare",
            ) from error
        modes = claim["spec"].get("accessModes", ())
        if count > 1 and not set(wanted) & set(modes):
            raise ClusterError(
                f"the claim {name} is {', '.join(modes)}: one node can mount it, but the run has {count}",
                hint=f"choose one with {' or '.join(wanted)}, or use cluster.data_bucket",
            )


def job(experiment: Experiment, overrides: Sequence[str]) -> Object:
    """Return the Job that prepares the task's data set in the claim, or for the bucket."""
    config, name = cluster_config(experiment), experiment.task.dataset
    if not (config.data_claim or config.data_bucket) or name == registry.NO_DATASET:
        raise ClusterError(
            f"task={experiment.task.name} has no data to prepare, or no place for it",
            hint="give cluster.data_claim=NAME or cluster.data_bucket=gs://BUCKET/FOLDER, and task=NAME",
        )
    sent = resolved.assignment(rayjob.in_pod(experiment, seed=experiment.seed), rayjob.own_words(overrides))
    request = pods.head_request(experiment)
    prepare = pods.container(
        config,
        "prepare-data",
        request,
        pods.MOUNTS | {"data": DATA},
        secret=False,
        command=["env", sent, "python", "-m", "mlbench.data", "prepare"],
    )
    template = pods.pod(config, {pods.ROLE: "system"}, prepare, node_labels=config.head_node_labels)
    spec = template["spec"]
    if config.data_bucket:
        copy = pods.copy_container(config, f"{DATA}/{name}", f"{config.data_bucket}/{name}", request)
        spec |= {"initContainers": [prepare], "containers": [copy]}
    else:
        spec["volumes"][-1] = {"name": "data"} | pods.claim(config.data_claim)
    spec["restartPolicy"] = "Never"
    slug = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    # An ended Job is kept for a while. With another destination it would be mistaken for this one.
    destination = hashlib.sha256(f"{config.data_claim or config.data_bucket}".encode()).hexdigest()[:6]
    return pods.resource(
        config, "batch/v1", "Job", f"mlbench-data-{slug}-{destination}",
        spec={"backoffLimit": 0, "ttlSecondsAfterFinished": KEEP_S,
              "template": pods.with_head_pod(config, template)},
    )  # fmt: skip


def prepare(experiment: Experiment, overrides: Sequence[str], report: Callable[[str], None]) -> None:
    """Run the Job to its end and delete it. Raises UserError with its last line if it fails.

    If a Job of that name runs already, it is followed. The command may be stopped: the Job continues.
    """
    item, config = job(experiment, overrides), cluster_config(experiment)
    name = item["metadata"]["name"]
    api = Kubernetes(config.context)
    try:
        create_surroundings(api, experiment)
        create(api, item)
        report(f"{name} runs: {shlex.join(['kubectl', '-n', config.namespace, 'logs', '-f', f'job/{name}'])}")
        failed = _failed(api, config.namespace, name, report)
    except ApiError as error:
        raise ClusterError(
            f"the data cannot be prepared: {error}", hint="kubectl get jobs lists the Jobs"
        ) from error
    delete(api, path_of(item))
    if failed is not None:
        raise ClusterError(f"{name} failed: {failed}", hint="fix that, then prepare again")
    report(f"{source(experiment)}: prepared")


def _failed(api: Kubernetes, namespace: str, name: str, report: Callable[[str], None]) -> str | None:
    """Wait for the end of a Job. Return its last line if it failed, or None if it succeeded."""
    query, said = {"labelSelector": f"job-name={name}"}, ""
    for jobs in api.watch(path("batch/v1", "Job", namespace), fieldSelector=f"metadata.name={name}"):
        if isinstance(jobs, ApiError):
            continue
        status = jobs.get(name, {}).get("status", {})
        if name not in jobs or status.get("succeeded"):
            return None if name in jobs else "it was deleted"
        owned = patiently(lambda: api.get(path("v1", "Pod", namespace), **query)["items"])
        waits = diagnosis.unschedulable(owned) or next(
            (problem.sentence for problem in diagnosis.problems(owned)), ""
        )
        if status.get("failed"):
            return waits or _last_line(api, namespace, owned)
        if waits and waits != said:
            report(said := waits)
    return None  # a watch has no end


def _last_line(api: Kubernetes, namespace: str, owned: Sequence[Object]) -> str:
    """Return the last line of the failed container."""
    for pod in owned:
        status = pod.get("status", {})
        for container in (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())):
            if container.get("state", {}).get("terminated", {}).get("exitCode"):
                log = path("v1", "Pod", namespace, pod["metadata"]["name"]) + "/log"
                lines = [*api.lines(log, patience=15.0, container=container["name"], tailLines=1)]
                return lines[-1] if lines else "its log is empty"
    return "its pod is gone"

"""Official data in a cluster: whether its claim fits the run, and the Job that fills a claim or a bucket."""

import hashlib
import re
import shlex
from collections.abc import Callable, Sequence

from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.tasks import registry
from mlbench.wings.kuberay import diagnosis, pods, rayjob
from mlbench.wings.kuberay.api import ApiError, Kubernetes, path, path_of
from mlbench.wings.kuberay.config import cluster_config
from mlbench.wings.kuberay.objects import create, create_surroundings, delete, patiently
from mlbench.wings.kuberay.pods import DATA, Object

MANY_NODES = ("ReadOnlyMany", "ReadWriteMany")  # access modes of a volume that several nodes may mount
KEEP_S = 3600  # s that Kubernetes keeps a Job that has ended and that no command has deleted


def source(experiment: Experiment) -> str:
    """Return where the workers find the data set, for people."""
    config, name = cluster_config(experiment), experiment.task.dataset
    if config.data_bucket:
        return f"{config.data_bucket}/{name}, copied to each worker's node"
    if config.data_claim:
        return f"{name} of the claim {config.data_claim}"
    return f"{name}, made on each worker's node"


def require_claim(api: Kubernetes, experiment: Experiment) -> None:
    """Raise UserError for a claim that is not there, or that the nodes of the run cannot all mount."""
    config, nodes = cluster_config(experiment), rayjob.worker_pods(experiment)
    if config.data_claim is None:
        return
    try:
        claim = api.get(path("v1", "PersistentVolumeClaim", config.namespace, config.data_claim))
    except ApiError as error:
        if error.status == 403:
            return  # whoever may not read it is not told
        if error.status != 404:
            raise
        raise UserError(
            f"the namespace {config.namespace} has no PersistentVolumeClaim {config.data_claim}",
            hint="create it, and fill it with python -m mlbench.cluster data prepare",
        ) from error
    modes = claim["spec"].get("accessModes", ())
    if nodes > 1 and not set(MANY_NODES) & set(modes):
        raise UserError(
            f"the claim {config.data_claim} is {', '.join(modes)}: one node can mount it, the run has "
            f"{nodes}",
            hint=f"take one with {' or '.join(MANY_NODES)}, or cluster.data_bucket, which each node copies",
        )


def job(experiment: Experiment, overrides: Sequence[str]) -> Object:
    """Return the Job that prepares the task's data set in the claim, or for the bucket."""
    config, name = cluster_config(experiment), experiment.task.dataset
    if not (config.data_claim or config.data_bucket) or name == registry.NO_DATASET:
        raise UserError(
            f"task={experiment.task.name} has nothing to prepare, or nothing says where to",
            hint="say cluster.data_claim=NAME or cluster.data_bucket=gs://BUCKET/FOLDER, and task=NAME",
        )
    pod_overrides = rayjob.pod_overrides(overrides)
    request = pods.head_request(experiment)
    prepare = pods.container(
        config,
        "prepare-data",
        request,
        pods.MOUNTS | {"data": DATA},
        secret=False,
        command=["python", "-m", "mlbench.data", "prepare", *pod_overrides, f"data_root={DATA}"],
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
    # A Job that has ended is kept for a while: of another place, it would be taken for this one's.
    destination = hashlib.sha256(f"{config.data_claim or config.data_bucket}".encode()).hexdigest()[:6]
    return pods.resource(
        config, "batch/v1", "Job", f"mlbench-data-{slug}-{destination}",
        spec={"backoffLimit": 0, "ttlSecondsAfterFinished": KEEP_S,
              "template": pods.with_head_pod(config, template)},
    )  # fmt: skip


def prepare(experiment: Experiment, overrides: Sequence[str], report: Callable[[str], None]) -> None:
    """Run the Job to its end and delete it; UserError with its last line where it fails.

    A Job of that name that runs already is followed. The command may be stopped: the Job runs on.
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
        raise UserError(
            f"the data cannot be prepared: {error}", hint="kubectl get jobs shows what is there"
        ) from error
    delete(api, path_of(item))
    if failed is not None:
        raise UserError(f"{name} failed: {failed}", hint="mend that, and prepare again")
    report(f"{source(experiment)}: prepared")


def _failed(api: Kubernetes, namespace: str, name: str, report: Callable[[str], None]) -> str | None:
    """Return the last line of a Job that failed, None of one that succeeded; wait for its end."""
    query, said = {"labelSelector": f"job-name={name}"}, ""
    for jobs in api.watch(path("batch/v1", "Job", namespace), fieldSelector=f"metadata.name={name}"):
        if isinstance(jobs, ApiError):
            continue
        status = jobs.get(name, {}).get("status", {})
        if name not in jobs or status.get("succeeded"):
            return None if name in jobs else "somebody deleted it"
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
    """Return the last line of the container that failed."""
    for pod in owned:
        status = pod.get("status", {})
        for container in (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())):
            if container.get("state", {}).get("terminated", {}).get("exitCode"):
                log = path("v1", "Pod", namespace, pod["metadata"]["name"]) + "/log"
                lines = [*api.lines(log, patience=15.0, container=container["name"], tailLines=1)]
                return lines[-1] if lines else "its log is empty"
    return "its pod is gone"

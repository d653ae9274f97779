"""Check, create, follow and delete a run as a RayJob."""

import math
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from mlbench import clock
from mlbench.clusters.submission import SubmissionLost
from mlbench.config import resolved
from mlbench.config.errors import ClusterError
from mlbench.config.experiment import Cluster, Experiment
from mlbench.plugins.kuberay import diagnosis, rayjob, shared
from mlbench.plugins.kuberay.api import ApiError, Kubernetes, current_context, path
from mlbench.plugins.kuberay.capacity import require_room
from mlbench.plugins.kuberay.config import Config, cluster_config, data_gib, expected_s, limit_s, provision_s
from mlbench.plugins.kuberay.dataset import require_claims
from mlbench.plugins.kuberay.follow import JobFollower
from mlbench.plugins.kuberay.objects import create_owned, create_surroundings, delete, patiently
from mlbench.plugins.kuberay.pods import RUN, Object
from mlbench.plugins.kuberay.provisioning.journal import Journal, journals
from mlbench.plugins.kuberay.provisioning.plan import provider
from mlbench.plugins.kuberay.provisioning.spec import HOUR, ClusterSpec
from mlbench.record import format
from mlbench.record.format import duration
from mlbench.record.overhead import overhead

LEVEL = "pod-security.kubernetes.io/enforce"  # label of a namespace
REMAKE = "mlbench cluster down {}, and up with"
SYSTEM_GIB = 40  # of a node's disk for its system, the unpacked image and Kubernetes' free reserve


def submit(experiment: Experiment, overrides: Sequence[str], *, seed: int) -> "RayJobSubmission":
    """Create a RayJob for the run. Raises UserError if the cluster would refuse or never schedule it."""
    config = cluster_config(experiment)
    name = rayjob.run_name(experiment)
    own = rayjob.run_objects(experiment, overrides, name=name, seed=seed)
    api = Kubernetes(config.context)
    try:
        require_cluster(api, experiment)
        create_surroundings(api, experiment)
        patiently(lambda: api.create(own[-1], dry_run=True))  # before the nodes of a sweep exist
        if config.shared and not config.queue:  # growth would be outside the queue's quota
            owner, cluster = shared.ensure(api, experiment)
            own = rayjob.run_objects(
                experiment, overrides, name=name, seed=seed, group=owner, ray_cluster=cluster
            )
        job = create_owned(api, own)
    except ApiError as error:
        raise ClusterError(f"the run cannot be submitted: {error}", hint=_hint(error)) from error
    except SubmissionLost as error:  # a Ray cluster that is not deleted
        raise ClusterError(f"the run cannot be submitted: {error}") from error
    return RayJobSubmission(api, experiment, job)


def check(experiment: Experiment) -> None:
    """Raise UserError for a run that the cluster would refuse or never schedule. Create nothing."""
    *_, job = rayjob.run_objects(experiment, (), name=rayjob.run_name(experiment), seed=0)
    api = Kubernetes(cluster_config(experiment).context)
    try:
        require_cluster(api, experiment)
        patiently(lambda: api.create(job, dry_run=True))
    except ApiError as error:
        if error.status == 404:  # the namespace, which the first run makes
            return
        raise ClusterError(f"the cluster does not answer: {error}", hint=_hint(error)) from error


def expires(experiment: Experiment) -> float | None:
    """Return when the cluster expires (s since 1970), or None if mlbench did not make it in a cloud."""
    log = _journal(experiment)
    return log.spec.expires if log else None


def remains(experiment: Experiment) -> str | None:
    """Return what still costs after the run and what ends it, or None for a cluster not made here."""
    if (log := _journal(experiment)) is None:
        return None
    spec, gke = log.spec, log.spec.provider == "gke"  # with GKE the workers go when they are idle
    rate = format.usd(sum(spec.usd_per_hour(workers=not gke).values()))
    workers = ", its workers for ten minutes more" if gke else ", workers included"
    return (
        f"the cluster {spec.name} still costs {rate} an hour{workers} "
        f"(mlbench cluster down {spec.name} deletes it)"
    )


def down(experiment: Experiment, report: Callable[[str], None]) -> None:
    """Delete the cluster that `mlbench.cluster up` made from here. Raises UserError if there is none."""
    if (log := _journal(experiment)) is None:
        raise ClusterError("down_after=run: the cluster was not made by mlbench cluster up, so it stays")
    from mlbench.plugins.kuberay.provisioning import lifecycle  # imported here: a plan needs no psutil

    lifecycle.down(log.spec.name, report)


def attach(config: Cluster, name: str) -> "RayJobSubmission":
    """Return the submission of a RayJob of an earlier command. Raises UserError if there is none."""
    assert isinstance(config, Config)
    api = Kubernetes(config.context)
    try:
        job = api.get(path("ray.io/v1", "RayJob", config.namespace, name))
    except ApiError as error:
        raise ClusterError(f"no run {name} in the namespace {config.namespace}: {error}") from error
    sent = job["metadata"].get("annotations", {}).get(rayjob.EXPERIMENT)
    if sent is None:
        raise ClusterError(f"the RayJob {name} was not created by this version's mlbench run")
    return RayJobSubmission(api, resolved.loads(sent)[0], job)


class RayJobSubmission:
    """A RayJob in a cluster, and its command."""

    def __init__(self, api: Kubernetes, experiment: Experiment, job: Object) -> None:
        self.name: str = job["metadata"]["name"]
        self.seed = int(job["metadata"]["annotations"][rayjob.SEED])
        self.arguments = shlex.split(job["metadata"]["annotations"][rayjob.COMMAND])
        self.experiment = experiment
        self._api, self._config = api, cluster_config(experiment)
        group = job["metadata"]["labels"][RUN]
        pods = rayjob.worker_pods(experiment) + 1  # with the head; the submitter comes when they run
        self._follower = JobFollower(api, self._config.namespace, self.name, group=group, pods=pods)
        self._follower.see_job(job)
        self.messages, self.last_messages = self._follower.messages, self._follower.last_messages

    def description(self) -> dict[str, Any]:
        """Return the fields of record.JobSubmission that the cluster provides."""
        job = self._follower.job
        status, pods = job.get("status", {}), self._follower.pods.values()
        return {
            "name": self.name,
            "namespace": self._config.namespace,
            "image": self._config.image,
            "head_pod": self._config.head_pod,
            "worker_pod": self._config.worker_pod,
            "ray_cluster": status.get("rayClusterName"),
            "created": job["metadata"].get("creationTimestamp"),
            "started": status.get("rayJobInfo", {}).get("startTime"),
            "pods": diagnosis.placement(pods, self._nodes(), self._config.topology),
        }

    def delete(self) -> None:
        """Delete the RayJob, and with it the Ray cluster that it owns. Return when it is gone."""
        delete(self._api, path("ray.io/v1", "RayJob", self._config.namespace, self.name))

    def _nodes(self) -> dict[str, Object]:
        """Return the nodes by name, or none if they may not be read."""
        try:
            return {node["metadata"]["name"]: node for node in self._api.get(path("v1", "Node"))["items"]}
        except ApiError:
            return {}


def require_cluster(api: Kubernetes, experiment: Experiment) -> None:
    """Raise UserError for a cluster that has expired, does not answer, lacks KubeRay, or is too small."""
    log = _journal(experiment)
    # the nodes of an expired one go, and `reap` may delete it at any time
    if log is not None and (late := clock.wall() - log.spec.expires) >= 0:
        name = log.spec.name
        raise ClusterError(
            f"the cluster {name} expired {duration(late)} ago",
            hint=f"{REMAKE.format(name)} more hours=",
        )
    if log is not None:
        _require_outlasting(log.spec, experiment)
    try:
        api.get("/apis/ray.io/v1")
    except ApiError as error:
        if error.status == 404:
            raise ClusterError(
                "KubeRay is not installed in this cluster",
                hint="mlbench cluster up existing context=NAME installs it",
            ) from error
        raise
    require_claims(api, experiment)
    _require_level(api, experiment)
    require_room(api, experiment)


def _require_level(api: Kubernetes, experiment: Experiment) -> None:
    """Raise UserError if the namespace admits no pod that is root with IPC_LOCK."""
    config = cluster_config(experiment)
    if not config.ipc_lock:
        return
    try:
        labels = api.get(path("v1", "Namespace", name=config.namespace))["metadata"].get("labels", {})
    except ApiError as error:
        if error.status == 403:
            return
        labels = {LEVEL: "restricted"}  # its level at creation
    if labels.get(LEVEL, "privileged") != "privileged":
        raise ClusterError(
            f"cluster.ipc_lock=true: the namespace {config.namespace} enforces Pod Security {labels[LEVEL]}",
            hint=f"kubectl label --overwrite namespace {config.namespace} {LEVEL}=privileged",
        )


def _require_outlasting(spec: ClusterSpec, experiment: Experiment) -> None:
    """Raise UserError for a run that ends after a cluster made here, or whose data its nodes cannot hold."""
    known, needed = expected_s(experiment), provision_s(experiment)
    if known or experiment.scale == "official":  # the limit may be all that is known
        needed = needed + known if known else limit_s(experiment)
    if (left := spec.expires - clock.wall()) < needed:
        raise ClusterError(
            f"the cluster {spec.name} expires in {duration(left)}, the run may take {duration(needed)}",
            hint=f"{REMAKE.format(spec.name)} hours={math.ceil(needed / HOUR)} or more",
        )
    size, disk = data_gib(experiment) or 0, spec.disk_gb or overhead(spec.provider).disk_gb
    if size + SYSTEM_GIB > disk * 1e9 / 2**30:
        raise ClusterError(
            f"nodes of {spec.name} have {disk} GB of disk: too little for {size} GiB of data and the image",
            hint=f"{REMAKE.format(spec.name)} disk_gb={math.ceil((size + SYSTEM_GIB) * 2**30 / 1e9)}",
        )


def _journal(experiment: Experiment) -> Journal | None:
    """Return the journal of the cluster, if `mlbench.cluster up` made it from here."""
    billed = [log for log in journals()[0] if log.state == "up" and log.spec.billed]
    context = (cluster_config(experiment).context or current_context()) if billed else None
    return next((log for log in billed if provider(log.spec).context(log.spec) == context), None)


def _hint(error: ApiError) -> str:
    return {
        401: "the credentials of your kubeconfig are not accepted: log in again",
        403: "have an administrator bind you to the Role mlbench-submitter: --cfg manifest shows it",
        **dict.fromkeys((400, 422), "--cfg manifest shows the object"),
    }.get(error.status, "kubectl get rayjobs shows whether the cluster answers, or has made the run")

"""A run as a RayJob: checked, created, followed and deleted."""

import shlex
from collections.abc import Sequence
from typing import Any

from mlbench import clock
from mlbench.clusters.submission import SubmissionLost
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Cluster, Experiment
from mlbench.record.format import duration
from mlbench.wings.kuberay import diagnosis, rayjob, shared
from mlbench.wings.kuberay.api import ApiError, Kubernetes, current_context, path
from mlbench.wings.kuberay.capacity import require_room
from mlbench.wings.kuberay.config import Config, cluster_config
from mlbench.wings.kuberay.dataset import require_claim
from mlbench.wings.kuberay.follow import JobFollower
from mlbench.wings.kuberay.objects import create_owned, create_surroundings, delete, patiently
from mlbench.wings.kuberay.pods import RUN, Object
from mlbench.wings.kuberay.provisioning.journal import Journal, journals
from mlbench.wings.kuberay.provisioning.plan import provider


def submit(experiment: Experiment, overrides: Sequence[str], *, seed: int) -> "RayJobSubmission":
    """Create a RayJob for the run; UserError for what the cluster would refuse or could never schedule."""
    config = cluster_config(experiment)
    name = rayjob.run_name(experiment)
    own = rayjob.run_objects(experiment, overrides, name=name, seed=seed)
    api = Kubernetes(config.context)
    try:
        require_cluster(api, experiment)
        create_surroundings(api, experiment)
        patiently(lambda: api.create(own[-1], dry_run=True))  # before the nodes of a sweep are there
        if config.shared:
            owner, cluster = shared.ensure(api, experiment)
            own = rayjob.run_objects(
                experiment, overrides, name=name, seed=seed, group=owner, ray_cluster=cluster
            )
        job = create_owned(api, own)
    except ApiError as error:
        raise UserError(f"the run cannot be submitted: {error}", hint=_hint(error)) from error
    except SubmissionLost as error:  # a Ray cluster that stays
        raise UserError(f"the run cannot be submitted: {error}") from error
    return RayJobSubmission(api, experiment, job)


def check(experiment: Experiment) -> None:
    """Raise UserError for a run that the cluster would refuse or could never schedule; create nothing."""
    *_, job = rayjob.run_objects(experiment, (), name=rayjob.run_name(experiment), seed=0)
    api = Kubernetes(cluster_config(experiment).context)
    try:
        require_cluster(api, experiment)
        patiently(lambda: api.create(job, dry_run=True))
    except ApiError as error:
        if error.status == 404:  # the namespace, which the first run makes
            return
        raise UserError(f"the cluster cannot be asked: {error}", hint=_hint(error)) from error


def expires(experiment: Experiment) -> float | None:
    """Return when the cluster expires (s since 1970); None for one that a cloud does not bill to us."""
    log = _journal(experiment)
    return log.spec.expires if log else None


def attach(config: Cluster, name: str) -> "RayJobSubmission":
    """Return the submission of a RayJob that an earlier command created; UserError where there is none."""
    assert isinstance(config, Config)
    api = Kubernetes(config.context)
    try:
        job = api.get(path("ray.io/v1", "RayJob", config.namespace, name))
    except ApiError as error:
        raise UserError(f"there is no run {name} in the namespace {config.namespace}: {error}") from error
    command = job["metadata"].get("annotations", {}).get(rayjob.COMMAND)
    if command is None:
        raise UserError(f"the RayJob {name} was not created by mlbench.run")
    return RayJobSubmission(api, compose(shlex.split(command)), job)


class RayJobSubmission:
    """A RayJob in a cluster, and what its command was."""

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
        """Return the fields of record.JobSubmission that the cluster knows."""
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
        """Delete the RayJob, and with it the Ray cluster that it owns; return when it is gone."""
        delete(self._api, path("ray.io/v1", "RayJob", self._config.namespace, self.name))

    def _nodes(self) -> dict[str, Object]:
        """Return the nodes by name; none where they may not be read."""
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
        raise UserError(
            f"the cluster {name} expired {duration(late)} ago",
            hint=f"python -m mlbench.cluster down {name}, and up with more hours=",
        )
    try:
        api.get("/apis/ray.io/v1")
    except ApiError as error:
        if error.status == 404:
            raise UserError(
                "KubeRay is not installed in this cluster",
                hint="python -m mlbench.cluster up existing context=NAME installs it",
            ) from error
        raise
    require_claim(api, experiment)
    require_room(api, experiment)


def _journal(experiment: Experiment) -> Journal | None:
    """Return the journal of the cluster, where `mlbench.cluster up` made it from here."""
    billed = [log for log in journals()[0] if log.state == "up" and log.spec.billed]
    context = (cluster_config(experiment).context or current_context()) if billed else None
    return next((log for log in billed if provider(log.spec).context(log.spec) == context), None)


def _hint(error: ApiError) -> str:
    return {
        401: "the credentials of your kubeconfig are not accepted: log in again",
        403: "ask an administrator to bind you to the Role mlbench-submitter: --cfg manifest shows it",
        **dict.fromkeys((400, 422), "--cfg manifest shows the object"),
    }.get(error.status, "kubectl get rayjobs shows whether the cluster answers, or has made the run")

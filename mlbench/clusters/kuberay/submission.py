"""A run as a RayJob: checked, created, followed and deleted."""

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any

from mlbench.clusters.kuberay import diagnosis, rayjob, schema
from mlbench.clusters.kuberay.api import ApiError, Kubernetes, path
from mlbench.clusters.kuberay.capacity import require_room
from mlbench.clusters.kuberay.config import Config, cluster_config
from mlbench.clusters.kuberay.follow import Follower
from mlbench.clusters.kuberay.pods import RUN, Object
from mlbench.clusters.submission import SubmissionLost
from mlbench.experiment import clock
from mlbench.experiment.config import Cluster, Experiment
from mlbench.experiment.errors import UserError

TRIES = 5  # of a request that fails because the API server is busy or down
GONE_S = 60.0  # s that the deletion of a RayJob may take
POLL_S = 0.5  # s between two looks whether it is gone


def submit(experiment: Experiment, overrides: Sequence[str], *, seed: int) -> "RayJobSubmission":
    """Create a RayJob for the run; UserError for what the cluster would refuse or could never schedule."""
    config = cluster_config(experiment)
    name = rayjob.run_name(experiment)
    own = rayjob.run_objects(experiment, overrides, name=name, seed=seed, ray_cluster=config.ray_cluster)
    require_valid(own)
    api = Kubernetes(config.context)
    try:
        require_cluster(api, experiment)
        create_surroundings(api, experiment)
        job = create_owned(api, own)
    except ApiError as error:
        raise UserError(f"the run cannot be submitted: {error}", hint=_hint(error)) from error
    return RayJobSubmission(api, experiment, job)


def attach(config: Cluster, name: str) -> "RayJobSubmission":
    """Return the submission of a RayJob that an earlier command created; UserError where there is none."""
    from mlbench.experiment.config import compose

    assert isinstance(config, Config)
    api = Kubernetes(config.context)
    try:
        job = api.get(path("ray.io/v1", "RayJob", config.namespace, name))
    except ApiError as error:
        raise UserError(f"there is no run {name} in the namespace {config.namespace}: {error}") from error
    words = job["metadata"].get("annotations", {}).get(rayjob.COMMAND)
    if words is None:
        raise UserError(f"the RayJob {name} was not created by mlbench.run")
    return RayJobSubmission(api, compose(shlex.split(words)), job)


class RayJobSubmission:
    """A RayJob in a cluster, and what its command was."""

    def __init__(self, api: Kubernetes, experiment: Experiment, job: Object) -> None:
        self.name: str = job["metadata"]["name"]
        self.seed = int(job["metadata"]["annotations"][rayjob.SEED])
        self.words = shlex.split(job["metadata"]["annotations"][rayjob.COMMAND])
        self.experiment = experiment
        self._api, self._config = api, cluster_config(experiment)
        group = job["metadata"]["labels"][RUN]
        # The head and, where it runs beside the head, no submitter.
        pods = rayjob.worker_pods(experiment) + 1
        self._follower = Follower(api, self._config.namespace, self.name, group=group, pods=pods)
        self._follower.job = job

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages of the run's event stream until it has ended; or raise SubmissionLost."""
        return self._follower.messages()

    def description(self) -> dict[str, Any]:
        """Return the fields of record.Submission that the cluster knows."""
        job = self._follower.job
        status, pods = job.get("status", {}), self._follower.pods.values()
        return {
            "name": self.name,
            "namespace": self._config.namespace,
            "image": self._config.image,
            "ray_cluster": self._config.ray_cluster or status.get("rayClusterName"),
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


def require_valid(items: Sequence[Object]) -> None:
    """Raise UserError where the API server or KubeRay's operator would refuse one of the objects."""
    faults = [fault for item in items for fault in schema.faults(item)]
    if faults:
        raise UserError("; ".join(faults), hint="--cfg manifest shows the object")


def require_cluster(api: Kubernetes, experiment: Experiment) -> None:
    """Raise UserError for a cluster that does not answer, lacks KubeRay, or is too small."""
    try:
        api.get("/apis/ray.io/v1")
    except ApiError as error:
        if error.status == 404:
            raise UserError(
                "KubeRay is not installed in this cluster",
                hint="helm install kuberay-operator kuberay/kuberay-operator --version 1.7.0; "
                "docs/clusters.md has the rest",
            ) from error
        raise
    require_room(api, experiment)


def create_surroundings(api: Kubernetes, experiment: Experiment) -> None:
    """Create what the runs of a namespace share and is not there yet."""
    for item in rayjob.surroundings(experiment):
        metadata = item["metadata"]
        place = path(item["apiVersion"], item["kind"], metadata.get("namespace"), metadata["name"])
        try:
            patiently(lambda: api.get(place))  # noqa: B023  (called at once)
            continue
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            readable = error.status == 404
        try:
            create(api, item)
        except ApiError as error:
            if error.status == 403 and (not readable or item["kind"] == "Role"):
                continue  # an administrator's matter; whatever lacks, the RayJob's creation tells
            raise


def create_owned(api: Kubernetes, items: Sequence[Object]) -> Object:
    """Create the last of the objects and then, as its property, the others; all go when it goes."""
    *others, last = items
    api.create(last, dry_run=True)  # admission, rights and quota say no before anything is there
    owner = create(api, last)
    reference = {field: owner[field] for field in ("apiVersion", "kind")}
    reference |= {field: owner["metadata"][field] for field in ("name", "uid")}
    try:
        for item in others:
            create(api, item | {"metadata": item["metadata"] | {"ownerReferences": [reference]}})
    except BaseException:
        metadata = last["metadata"]
        api.delete(path(last["apiVersion"], last["kind"], metadata["namespace"], metadata["name"]))
        raise
    return owner


def create(api: Kubernetes, item: Object) -> Object:
    """Create an object; one that an attempt without an answer has created is taken."""
    metadata = item["metadata"]
    try:
        return patiently(lambda: api.create(item))
    except ApiError as error:
        if error.status != 409:
            raise
        return api.get(path(item["apiVersion"], item["kind"], metadata.get("namespace"), metadata["name"]))


def delete(api: Kubernetes, place: str) -> None:
    """Delete an object and wait until it is gone; SubmissionLost where it stays."""
    end = clock.monotonic() + GONE_S
    try:
        while patiently(lambda: api.delete(place)):
            if clock.monotonic() > end:
                raise SubmissionLost(f"{place} is still there; delete it with kubectl")
            time.sleep(POLL_S)
    except ApiError as error:
        raise SubmissionLost(f"{place} could not be deleted ({error}); delete it with kubectl") from error


def patiently(request: Any) -> Any:
    """Return what a request returns; one that may succeed later is tried TRIES times."""
    for attempt in range(TRIES):
        try:
            return request()
        except ApiError as error:
            if not error.passing or attempt == TRIES - 1:
                raise
            time.sleep(0.2 * 2**attempt)


def _hint(error: ApiError) -> str:
    return {
        401: "the credentials of your kubeconfig are not accepted: log in again",
        403: "ask an administrator to bind you to the Role mlbench-submitter: --cfg manifest shows it",
        422: "--cfg manifest shows the object",
    }.get(error.status, "kubectl get rayjobs shows whether the cluster answers you")

"""Create and delete objects on an API server that may be busy, down for a moment, or refuse."""

import time
from collections.abc import Sequence
from typing import Any

from mlbench import clock
from mlbench.clusters.submission import SubmissionLost
from mlbench.config.experiment import Experiment
from mlbench.plugins.kuberay import rayjob
from mlbench.plugins.kuberay.api import ApiError, Kubernetes, path_of
from mlbench.plugins.kuberay.pods import Object

TRIES = 5  # of a request that fails because the API server is busy or down
GONE_S = 60.0  # s that the deletion of a RayJob may take
POLL_S = 0.5  # s between two checks whether it is gone


def create_surroundings(api: Kubernetes, experiment: Experiment) -> None:
    """Create the missing objects that the runs of a namespace share."""
    for item in rayjob.surroundings(experiment):
        try:
            patiently(lambda: api.get(path_of(item)))  # noqa: B023  (called at once)
            continue
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            readable = error.status == 404
        try:
            create(api, item)
        except ApiError as error:
            if error.status == 403 and (not readable or item["kind"] == "Role"):
                continue  # for an administrator; the creation of the RayJob reports what is missing
            raise


def create_owned(api: Kubernetes, items: Sequence[Object]) -> Object:
    """Create the last of the objects and then the others as its property: all are deleted with it."""
    *others, last = items
    owner = create(api, last)
    reference = {field: owner[field] for field in ("apiVersion", "kind")}
    reference |= {field: owner["metadata"][field] for field in ("name", "uid")}
    try:
        for item in others:
            create(api, item | {"metadata": item["metadata"] | {"ownerReferences": [reference]}})
    except BaseException:
        patiently(lambda: api.delete(path_of(last)))
        raise
    return owner


def create(api: Kubernetes, item: Object) -> Object:
    """Create an object, or accept one that an attempt without an answer has created."""
    try:
        return patiently(lambda: api.create(item))
    except ApiError as error:
        if error.status != 409:
            raise
        return patiently(lambda: api.get(path_of(item)))


def delete(api: Kubernetes, endpoint: str) -> None:
    """Delete an object and wait until it is gone. Raises SubmissionLost if it stays."""
    end = clock.monotonic() + GONE_S
    try:
        while patiently(lambda: api.delete(endpoint)):
            if clock.monotonic() > end:
                raise SubmissionLost(f"{endpoint} still exists: delete it with kubectl")
            time.sleep(POLL_S)
    except ApiError as error:
        raise SubmissionLost(f"{endpoint} could not be deleted ({error}): delete it with kubectl") from error


def patiently(request: Any) -> Any:
    """Return a request's result. A request that may succeed later is tried TRIES times."""
    for attempt in range(TRIES):
        try:
            return request()
        except ApiError as error:
            if not error.passing or attempt == TRIES - 1:
                raise
            time.sleep(0.2 * 2**attempt)

"""Watch a RayJob: three threads put what they see of it, its pods and its log into one queue.

The log is that of the submitter, which follows the output of the run. Kubernetes keeps it as long as the
RayJob, so it is read again from the beginning when a connection is lost.
"""

import queue
import threading
from collections.abc import Iterator
from typing import Any

from mlbench.plugins.kuberay.api import ApiError, Kubernetes, path
from mlbench.plugins.kuberay.pods import RUN, Object

POLL_S = 0.5  # s after which the queue's reader looks at its deadlines, and between two looks for a log
SILENCE_S = 120.0  # s without a line after which the log is requested again
SUBMITTER = "ray-job-submitter"  # KubeRay v1.7.0, SubmitterContainerName


class Watches:
    """The threads of one RayJob, and every pod that was seen, in its last state."""

    def __init__(self, api: Kubernetes, namespace: str, name: str, group: str) -> None:
        self.api, self.namespace, self.name, self.group = api, namespace, name, group
        self.pods: dict[str, Object] = {}
        self.queue: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.over = threading.Event()

    def start(self) -> None:
        """Start the threads. They end once `over` is set."""
        job = {"fieldSelector": f"metadata.name={self.name}"}
        group = {"labelSelector": f"{RUN}={self.group}"}
        for target, arguments in (
            (self._watch, ("job", self.path("ray.io/v1", "RayJob"), job)),
            (self._watch, ("pods", self.path("v1", "Pod"), group)),
            (self._follow_log, ()),
        ):
            threading.Thread(target=target, args=arguments, daemon=True).start()

    def next(self) -> tuple[str, Any]:
        """Return what kind of thing was seen, and the thing; ("", None) if there is none for a while."""
        try:
            return self.queue.get(timeout=POLL_S)
        except queue.Empty:
            return "", None

    def fetch_job(self) -> Object | None:
        """Return the RayJob as it is now. None: it was deleted."""
        try:
            return self.api.get(self.path("ray.io/v1", "RayJob", self.name))
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def fetch_pods(self) -> dict[str, Object]:
        """Return the pods as they are now."""
        answer = self.api.get(self.path("v1", "Pod"), labelSelector=f"{RUN}={self.group}")
        pods = {pod["metadata"]["name"]: pod for pod in answer["items"]}
        self.pods |= pods
        return pods

    def path(self, version: str, kind: str, name: str | None = None) -> str:
        """Return the path of a kind of objects in the namespace, or of one."""
        return path(version, kind, self.namespace, name)

    def submitters(self) -> list[Object]:
        """Return the pods that follow the output of this run, the newest first."""
        mine = filter(self._prints, list(self.pods.values()))
        return sorted(mine, key=lambda pod: pod["metadata"].get("creationTimestamp", ""), reverse=True)

    def lines(self, pod: Object, **query: str) -> Iterator[str]:
        """Yield the lines of a submitter's log. Raises ApiError."""
        endpoint = f"{self.path('v1', 'Pod', pod['metadata']['name'])}/log"
        return self.api.lines(endpoint, patience=SILENCE_S, container=SUBMITTER, **query)

    def _prints(self, pod: Object) -> bool:
        """Return whether a container of the pod follows the output of this run."""
        names = [container["name"] for container in pod.get("spec", {}).get("containers", ())]
        return SUBMITTER in names and pod["metadata"].get("labels", {}).get("job-name") == self.name

    def _watch(self, kind: str, endpoint: str, query: dict[str, str]) -> None:
        try:
            for seen in self.api.watch(endpoint, **query):
                if self.over.is_set():
                    return
                self.queue.put(("outage", seen) if isinstance(seen, ApiError) else (kind, seen))
        except ApiError as error:
            self.queue.put(("refused", error))

    def _follow_log(self) -> None:
        read = 0  # lines of the log that were passed on
        while not self.over.is_set():
            pod = next(iter(self.submitters()), None)
            if pod is not None and pod.get("status", {}).get("phase", "Pending") != "Pending":
                read = max(read, self._follow(pod, already=read))
            self.over.wait(POLL_S)

    def _follow(self, pod: Object, *, already: int) -> int:
        """Put the lines of a pod's log into the queue until it ends. Return their number."""
        count = 0
        try:
            for line in self.lines(pod, follow="true"):
                count += 1
                if count > already or "heartbeat" not in line:  # events carry their numbers
                    self.queue.put(("log", line))
        except ApiError:
            pass  # it is read again; the watches notice whether the API server answers at all
        return count

"""Following a RayJob: its status, its pods and the submitter's log, until the run has ended.

Three threads put what they see into one queue; the caller's thread decides. The submitter's log is the event
log's way home: it needs no storage and no right beyond `get pods/log`, it streams while the run goes on, and
Kubernetes keeps it for as long as the RayJob, so that a command which lost its connection, or its machine,
reads it again from the beginning.
"""

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from mlbench.clusters.kuberay import diagnosis
from mlbench.clusters.kuberay.api import ApiError, Kubernetes, path
from mlbench.clusters.kuberay.diagnosis import Problem
from mlbench.clusters.kuberay.pods import RUN, Object
from mlbench.clusters.submission import SubmissionLost
from mlbench.experiment import clock, stream

POLL_S = 0.5  # s between two looks at the deadlines below
LATE_S = 20.0  # s that the end of the log may come after the end of the RayJob
GRACE_S = 5.0  # s that a run whose pods are lost has to turn out to have ended
LOST_S = 120.0  # s in which Kubernetes says that a node is gone: 50 s to miss it, 60 s until its pods go
OUTAGE_S = 900.0  # s for which the API server may not answer before the run is left alone
SILENCE_S = 120.0  # s without a line after which the log is asked for again
ENDED = ("Complete", "Failed", "ValidationFailed")  # KubeRay v1.7.0, JobDeploymentStatus
SUBMITTER = "ray-job-submitter"  # KubeRay v1.7.0, SubmitterContainerName
LAST_LINES = 5  # of what the run printed, where it left no event


class Follower:
    """One RayJob of a namespace; `group` is the label of its pods."""

    def __init__(self, api: Kubernetes, namespace: str, name: str, *, group: str, pods: int) -> None:
        self.job: Object = {}
        self.pods: dict[str, Object] = {}  # every pod that was seen, as it was last
        self._api, self._namespace, self._name, self._group = api, namespace, name, group
        self._total = pods
        self._present: dict[str, Object] = {}
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._over = threading.Event()
        self._outage: float | None = None  # since when the API server does not answer
        self._problem: tuple[Problem, float] | None = None  # with the time at which it counts
        self._ended: float | None = None  # when the RayJob was seen to have ended
        self._events = 0
        self._failed = False  # whether the run says that it failed
        self._finished: float | None = None  # when its complete event log is its result
        self._last_lines: list[str] = []
        self._activity = ""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the run's messages until its event log is complete; raise SubmissionLost."""
        job = {"fieldSelector": f"metadata.name={self._name}"}
        watched = [("job", path("ray.io/v1", "RayJob", self._namespace), job)]
        pods = {"labelSelector": f"{RUN}={self._group}"}
        watched.append(("pods", path("v1", "Pod", self._namespace), pods))
        targets = [(self._watch, one) for one in watched] + [(self._follow_log, ())]
        for target, arguments in targets:
            threading.Thread(
                target=target, args=arguments, name=f"kuberay-{target.__name__}", daemon=True
            ).start()
        try:
            while self._finished is None or clock.monotonic() < self._finished:
                try:
                    kind, value = self._queue.get(timeout=POLL_S)
                except queue.Empty:
                    kind, value = "", None
                yield from self._take(kind, value)
                self._require_hope()
        finally:
            self._over.set()

    def _take(self, kind: str, value: Any) -> Iterator[dict[str, Any]]:
        if kind == "outage":
            self._outage = self._outage or clock.monotonic()
            yield from self._say(f"the API server does not answer, the run goes on: {value}")
        elif kind == "refused":
            raise SubmissionLost(f"the run cannot be followed: {value}", goes_on=True)
        elif kind == "job":
            self._outage = None
            self._see_job(value.get(self._name))
        elif kind == "pods":
            self._outage = None
            yield from self._see_pods(value)
        elif kind == "log":
            yield from self._see_line(value)

    def _see_job(self, job: Object | None) -> None:
        if job is None or job["metadata"].get("deletionTimestamp"):
            raise SubmissionLost("somebody deleted the RayJob")
        self.job = job
        if self._ended is None and job.get("status", {}).get("jobDeploymentStatus") in ENDED:
            self._ended = clock.monotonic()

    def _see_pods(self, pods: Mapping[str, Object]) -> Iterator[dict[str, Any]]:
        own = {
            name: pod
            for name, pod in pods.items()
            if diagnosis.NODE_TYPE in pod["metadata"].get("labels", {})
        }
        mine = [*own.values(), *filter(self._prints, pods.values())]
        problems = [*diagnosis.vanished(self._present, own), *diagnosis.problems(mine)]
        if self._failed:  # why, a node that is gone tells; pods that are deleted after the run do not
            problems = [one for one in diagnosis.problems(mine) if one.preempted]
        self._present = own
        self.pods |= pods
        fatal = next((one for one in problems if one.fatal), None)
        if fatal and self._problem is None and (self._ended is None or self._failed):
            self._problem = fatal, clock.monotonic() + GRACE_S
        if self._events == 0:
            waiting = diagnosis.unschedulable(own.values())
            yield from self._say(waiting or diagnosis.summary(own.values(), total=self._total))

    def _see_line(self, line: str) -> Iterator[dict[str, Any]]:
        message = stream.decode(line)
        if message is None:
            if line.strip():
                self._last_lines = [*self._last_lines, line.strip()][-LAST_LINES:]
        elif "event" in message:
            if message["number"] > self._events:
                lost = message["number"] - self._events
                raise SubmissionLost(
                    f"{lost} events are missing in the submitter's log, which Kubernetes has cut"
                )
            if message["number"] == self._events:
                self._events += 1
                if message["event"]["key"] == "run_result":
                    self._failed = message["event"]["value"]["status"] == "failed"
                yield message
        elif "end" in message:
            if message["end"] == self._events and self._finished is None:
                self._finished = clock.monotonic() + (LOST_S if self._failed else 0.0)
                if self._failed:
                    yield from self._say(f"failed; whether a node was lost, is known in {LOST_S:g} s")
        else:
            yield message

    def _require_hope(self) -> None:
        """Raise SubmissionLost where nothing more can come."""
        now = clock.monotonic()
        if self._finished is not None and now >= self._finished:
            return
        if self._problem is not None and now > self._problem[1]:
            problem = self._problem[0]
            raise SubmissionLost(problem.sentence, preempted=problem.preempted)
        if self._finished is not None:
            return
        if self._outage is not None and now - self._outage > OUTAGE_S:
            text = f"the API server did not answer for {OUTAGE_S:g} s; the run goes on"
            raise SubmissionLost(text, goes_on=True)
        late = self._ended is not None and now - self._ended > LATE_S
        if late or (self._ended is not None and self._status("jobDeploymentStatus") == "ValidationFailed"):
            raise SubmissionLost(self._failure())

    def _failure(self) -> str:
        """Return why a RayJob that has ended left no complete event log."""
        reason, message = self._status("reason"), self._status("message")
        if self._status("jobDeploymentStatus") == "ValidationFailed":
            return f"KubeRay refuses the RayJob: {message}"
        if reason == "PreRunningDeadlineExceeded":
            waiting = diagnosis.unschedulable(self._present.values())
            return "its pods did not all run within cluster.provision_s" + (f": {waiting}" if waiting else "")
        if reason == "DeadlineExceeded":
            return "it took longer than cluster.limit_s"
        own = [line for line in self._last_lines if line.startswith("mlbench: ")]
        if own:
            return own[-1].removeprefix("mlbench: ")
        said = f"; it printed at last: {self._last_lines[-1]}" if self._last_lines else ""
        return f"the RayJob ended as {reason or self._status('jobStatus') or 'Failed'}: {message}{said}"

    def _prints(self, pod: Object) -> bool:
        """Return whether a container of the pod follows the output of this run."""
        names = [one["name"] for one in pod.get("spec", {}).get("containers", ())]
        return SUBMITTER in names and pod["metadata"].get("labels", {}).get("job-name") == self._name

    def _status(self, field: str) -> str:
        return self.job.get("status", {}).get(field) or ""

    def _say(self, activity: str) -> Iterator[dict[str, Any]]:
        if activity != self._activity:
            self._activity = activity
            yield {"activity": activity}

    # The threads.

    def _watch(self, kind: str, place: str, query: dict[str, str]) -> None:
        try:
            for seen in self._api.watch(place, **query):
                if self._over.is_set():
                    return
                self._queue.put(("outage", seen) if isinstance(seen, ApiError) else (kind, seen))
        except ApiError as error:
            self._queue.put(("refused", error))

    def _follow_log(self) -> None:
        read = 0  # lines of the log that were handed on
        while not self._over.is_set():
            pod = next((pod for pod in list(self.pods.values()) if self._prints(pod)), None)
            if pod is not None and pod.get("status", {}).get("phase", "Pending") != "Pending":
                read = max(read, self._read_log(pod, already=read))
            self._over.wait(POLL_S)

    def _read_log(self, pod: Object, *, already: int) -> int:
        """Put the lines of a pod's log into the queue until it ends; return how many there were."""
        place = f"{path('v1', 'Pod', self._namespace, pod['metadata']['name'])}/log"
        count = 0
        try:
            for line in self._api.lines(place, patience=SILENCE_S, follow="true", container=SUBMITTER):
                count += 1
                if count > already or "heartbeat" not in line:  # events carry their numbers
                    self._queue.put(("log", line))
        except ApiError:
            pass  # it is read again; whether the API server answers at all, the watches tell
        return count

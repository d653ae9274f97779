"""Following a RayJob: its status, its pods and the submitter's log, until the run has ended.

Three threads put what they see into one queue; the caller's thread decides. The submitter's log is the event
log's way home: it needs no storage and no right beyond `get pods/log`, it streams while the run goes on, and
Kubernetes keeps it for as long as the RayJob, so that a command which lost its connection, or its machine,
reads it again from the beginning.

The three come in any order and any of them may be late, so none is a verdict: before a run is given up, its
RayJob, its pods and its log to the end are asked for anew. A log that cannot be read leaves the RayJob alone.
"""

import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from mlbench import clock
from mlbench.clusters.submission import SubmissionLost
from mlbench.record import stream
from mlbench.wings.kuberay import diagnosis
from mlbench.wings.kuberay.api import ApiError, Kubernetes, path
from mlbench.wings.kuberay.diagnosis import Problem
from mlbench.wings.kuberay.pods import RUN, Object

POLL_S = 0.5  # s between two looks at the deadlines below
LATE_S = 20.0  # s that the end of the log may come after the end of the RayJob
GRACE_S = 5.0  # s from a pod that is lost, or a RayJob that was deleted, to the questions above
# s in which Kubernetes says that a node is gone (50 s to miss it, 60 s until its pods go), and in which a run
# whose pod is lost writes something more, or it is (Ray misses a worker within 70 s)
LOST_S = 120.0
TRIES_S = 60.0  # s in which the kubelet starts a container again, after 10 and 20 s, and a Job its pod
OUTAGE_S = 900.0  # s for which the API server may not answer before the run is left alone
OPERATOR_S = 120.0  # s after which a RayJob without a status or a pod has no operator
SILENCE_S = 120.0  # s without a line after which the log is asked for again
# KubeRay v1.7.0, JobDeploymentStatus and JobStatus
ENDED = {"Complete", "Failed", "ValidationFailed", "SUCCEEDED", "FAILED", "STOPPED"}
SUBMITTER = "ray-job-submitter"  # KubeRay v1.7.0, SubmitterContainerName
LAST_LINES = 5  # of what the run printed, where it left no event


class JobFollower:
    """One RayJob of a namespace; `group` is the label of its pods."""

    def __init__(self, api: Kubernetes, namespace: str, name: str, *, group: str, pods: int) -> None:
        self.job: Object = {}
        self.pods: dict[str, Object] = {}  # every pod that was seen, as it was last
        self._api, self._namespace, self._name, self._group = api, namespace, name, group
        self._total, self._began = pods, clock.monotonic()
        self._present: dict[str, Object] = {}
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._over = threading.Event()
        self._outage: tuple[float, object] | None = None  # since when something does not answer, and why
        self._absence: Problem | None = None  # a pod, perhaps because the run has ended
        self._hint: tuple[Problem, float] | None = None  # why the run may be lost, and when that was seen
        self._deleted: float | None = None  # when the RayJob was seen to be deleted
        self._ended: float | None = None  # when it was seen to have ended
        self._query_time = 0.0  # when the API server was last asked for all of it
        self._events = 0
        self._first_event: Any = None
        self._event_time = 0.0  # when the last event came
        self._failed = False  # whether the run says that it failed, or was told to end
        self._finished: float | None = None  # when its complete event log is its result
        self._last_lines: list[str] = []
        self._activity = ""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the run's messages until its event log is complete; raise SubmissionLost."""
        jobs, pods = path("ray.io/v1", "RayJob", self._namespace), path("v1", "Pod", self._namespace)
        job = {"fieldSelector": f"metadata.name={self._name}"}
        group = {"labelSelector": f"{RUN}={self._group}"}
        threading.Thread(target=self._watch, args=("job", jobs, job), daemon=True).start()
        threading.Thread(target=self._watch, args=("pods", pods, group), daemon=True).start()
        threading.Thread(target=self._follow_log, daemon=True).start()
        try:
            while self._finished is None or clock.monotonic() < self._finished:
                try:
                    kind, value = self._queue.get(timeout=POLL_S)
                except queue.Empty:
                    kind, value = "", None
                yield from self._take(kind, value)
                yield from self._require_hope()
        finally:
            self._over.set()

    def last_messages(self) -> Iterator[dict[str, Any]]:
        """Yield what the log of a run that is to be deleted still holds.

        Raises SubmissionLost for a run that has ended, whose log is its result, and where it cannot be read.
        """
        if self._finished is not None:
            return
        try:
            self._refresh()
            if self._ended is not None and self._deleted is None:
                raise SubmissionLost("it has ended, and its log was not read to the end", goes_on=True)
            yield from self._read_rest()
        except ApiError as error:
            raise SubmissionLost(f"its log cannot be read to the end: {error}", goes_on=True) from error

    def _take(self, kind: str, value: Any) -> Iterator[dict[str, Any]]:
        if kind == "outage":
            self._outage = (self._outage[0] if self._outage else clock.monotonic()), value
            yield from self._say(f"the run is left alone while the cluster does not answer: {value}")
        elif kind == "refused":
            raise SubmissionLost(f"the run cannot be followed: {value}", goes_on=True)
        elif kind == "job":
            self._outage = None
            self.see_job(value.get(self._name))
        elif kind == "pods":
            self._outage = None
            yield from self._see_pods(value)
        elif kind == "log":
            yield from self._see_line(value)

    def see_job(self, job: Object | None) -> None:
        """Take the RayJob as it is; None: it is gone."""
        self.job = job or self.job
        if job is None or job["metadata"].get("deletionTimestamp"):
            self._deleted = self._deleted or clock.monotonic()
        elif self._ended is None and ENDED & {self._status("jobDeploymentStatus"), self._status("jobStatus")}:
            self._ended = clock.monotonic()

    def _see_pods(self, pods: Mapping[str, Object]) -> Iterator[dict[str, Any]]:
        own = {
            name: pod
            for name, pod in pods.items()
            if diagnosis.NODE_TYPE in pod["metadata"].get("labels", {})
        }
        if self._absence is None and self._ended is None and not self._failed:
            self._absence = next(diagnosis.vanished(self._present, own), None)
        self._present = own
        self.pods |= pods
        for problem in self._problems(pods):
            if self._hint is None or _weight(problem) > _weight(self._hint[0]):
                self._hint = problem, clock.monotonic()
        if self._events == 0:
            waiting = self._waiting()
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
                    f"{lost} events are missing in the submitter's log, which Kubernetes has cut",
                    goes_on=True,
                )
            if message["number"] == 0:
                self._first_event = self._first_event or message["event"]
                if message["event"] != self._first_event:  # numbers of two runs do not go together
                    raise SubmissionLost(
                        f"the cluster started the command anew after {self._events} events",
                        preempted=self._preempted,
                    )
            if message["number"] == self._events:
                if message["event"]["key"] == "run_result":
                    self._failed = message["event"]["value"]["status"] in ("failed", "interrupted")
                yield message
                self._events += 1  # not before: whoever is interrupted with it takes it again
                self._event_time = clock.monotonic()
        elif "end" in message:
            if message["end"] == self._events and self._finished is None:
                self._finished = clock.monotonic() + (LOST_S if self._failed else 0.0)
                if self._failed:
                    yield from self._say(f"failed; whether a node was lost, is known in {LOST_S:g} s")
        else:
            yield message

    def _require_hope(self) -> Iterator[dict[str, Any]]:
        """Raise SubmissionLost where nothing more can come; yield what the log still had."""
        if self._finished is not None and not self._failed:
            return
        now, before = clock.monotonic(), self._events
        if self._outage is not None and now - self._outage[0] > OUTAGE_S:
            text = f"{self._outage[1]}, for {OUTAGE_S:g} s; the run is left alone"
            raise SubmissionLost(text, goes_on=True)
        if not (self._absence or self._is_due(now)) or (self._outage and now < self._query_time + GRACE_S):
            return
        self._query_time = now
        try:
            self._refresh()
            if self._absence and self._ended is None:  # the pods of a run that has ended are deleted
                self._hint = self._hint or (self._absence, now)
            self._absence = None
            if not self._is_due(now):
                return
            yield from self._read_rest()
        except ApiError as error:
            yield from self._take("outage", error)
            return
        self._outage = None
        if self._events == before and self._is_due(now):
            raise self._verdict()

    def _is_due(self, now: float) -> bool:
        """Return whether the log of a run that was given a reason to end should have come to its end."""
        if self._finished is not None and not self._failed:
            return False
        if self._deleted is not None:
            return now - max(self._deleted, self._event_time) > GRACE_S
        if self._finished is not None:
            return self._preempted
        if self._ended is not None:
            refused = self._status("jobDeploymentStatus") == "ValidationFailed"
            return refused or now - max(self._ended, self._event_time) > LATE_S
        if not self._answered and now - self._began > OPERATOR_S:
            return True
        if self._hint is None:
            return False
        patience = TRIES_S if self._hint[0].passing else GRACE_S
        trains = self._events and not self._failed
        return now - max(self._hint[1], self._event_time) > (LOST_S if trains else patience)

    def _refresh(self) -> None:
        """Fetch the RayJob and its pods anew."""
        endpoint = path("ray.io/v1", "RayJob", self._namespace, self._name)
        try:
            self.see_job(self._api.get(endpoint))
        except ApiError as error:
            if error.status != 404:
                raise
            self.see_job(None)
        answer = self._api.get(path("v1", "Pod", self._namespace), labelSelector=f"{RUN}={self._group}")
        pods = {pod["metadata"]["name"]: pod for pod in answer["items"]}
        self.pods |= pods
        if self._hint and self._hint[0].passing:
            problem = max(self._problems(pods), key=_weight, default=None)
            self._hint = (problem, self._hint[1]) if problem else None

    def _problems(self, pods: Mapping[str, Object]) -> Iterator[Problem]:
        """Yield what is wrong with the pods of Ray, and with the newest of those that follow the output."""
        return diagnosis.problems(
            pod
            for pod in pods.values()
            if diagnosis.NODE_TYPE in pod["metadata"].get("labels", {}) or pod in self._submitters()[:1]
        )

    def _read_rest(self) -> Iterator[dict[str, Any]]:
        """Yield what the log holds up to its present end; ApiError where it cannot be read."""
        for pod in self._submitters():
            try:
                for line in self._lines(pod):
                    yield from (item for item in self._see_line(line) if "heartbeat" not in item)
            except ApiError as error:
                if error.status not in (400, 404):  # its container has not begun, it is gone
                    raise
        while not self._queue.empty():
            yield from self._take(*self._queue.get())

    @property
    def _answered(self) -> bool:
        return bool(self.job.get("status") or self.pods)

    @property
    def _preempted(self) -> bool:
        return self._hint is not None and self._hint[0].preempted

    def _verdict(self) -> SubmissionLost:
        """Return what became of a run whose log was read and does not say it."""
        if self._status("jobStatus") == "SUCCEEDED":
            return SubmissionLost(
                "it succeeded, but the end of its submitter's log is not there", goes_on=True
            )
        if self._deleted is not None:
            return SubmissionLost("somebody deleted the RayJob")
        if self._hint is not None:
            return SubmissionLost(self._hint[0].sentence, preempted=self._preempted)
        return SubmissionLost(self._failure())

    def _failure(self) -> str:
        """Return why a RayJob that has ended left no complete event log."""
        if not self._answered:
            return f"no KubeRay operator answers: after {OPERATOR_S:g} s the RayJob has no status and no pod"
        reason, message = self._status("reason"), self._status("message")
        if self._status("jobDeploymentStatus") == "ValidationFailed":
            return f"KubeRay refuses the RayJob: {message}; --cfg manifest shows the object"
        if reason == "PreRunningDeadlineExceeded":
            waiting = self._waiting()
            return "its pods did not all run within cluster.provision_s" + (f": {waiting}" if waiting else "")
        if reason == "DeadlineExceeded":
            return "it took longer than cluster.limit_s"
        own = [line for line in self._last_lines if line.startswith("mlbench: ")]
        if own:
            return own[-1].removeprefix("mlbench: ")
        said = f"; it printed at last: {self._last_lines[-1]}" if self._last_lines else ""
        return f"the RayJob ended as {reason or self._status('jobStatus') or 'Failed'}: {message}{said}"

    def _waiting(self) -> str | None:
        """Return why pods wait for a node, also in the newest words of the cluster's autoscaler."""
        waiting = diagnosis.unschedulable(self._present.values())
        if waiting:
            with suppress(ApiError):
                events = self._api.get(path("v1", "Event", self._namespace))["items"]
                waiting += diagnosis.scale_up(events, self._present)
        return waiting

    def _prints(self, pod: Object) -> bool:
        """Return whether a container of the pod follows the output of this run."""
        names = [container["name"] for container in pod.get("spec", {}).get("containers", ())]
        return SUBMITTER in names and pod["metadata"].get("labels", {}).get("job-name") == self._name

    def _status(self, field: str) -> str:
        return self.job.get("status", {}).get(field) or ""

    def _say(self, activity: str) -> Iterator[dict[str, Any]]:
        if activity != self._activity:
            self._activity = activity
            yield {"activity": activity}

    # The threads.

    def _watch(self, kind: str, endpoint: str, query: dict[str, str]) -> None:
        try:
            for seen in self._api.watch(endpoint, **query):
                if self._over.is_set():
                    return
                self._queue.put(("outage", seen) if isinstance(seen, ApiError) else (kind, seen))
        except ApiError as error:
            self._queue.put(("refused", error))

    def _follow_log(self) -> None:
        read = 0  # lines of the log that were handed on
        while not self._over.is_set():
            pod = next(iter(self._submitters()), None)
            if pod is not None and pod.get("status", {}).get("phase", "Pending") != "Pending":
                read = max(read, self._follow(pod, already=read))
            self._over.wait(POLL_S)

    def _follow(self, pod: Object, *, already: int) -> int:
        """Put the lines of a pod's log into the queue until it ends; return how many there were."""
        count = 0
        try:
            for line in self._lines(pod, follow="true"):
                count += 1
                if count > already or "heartbeat" not in line:  # events carry their numbers
                    self._queue.put(("log", line))
        except ApiError:
            pass  # it is read again; whether the API server answers at all, the watches tell
        return count

    def _submitters(self) -> list[Object]:
        """Return the pods that follow the output of this run, the newest first."""
        mine = filter(self._prints, list(self.pods.values()))
        return sorted(mine, key=lambda pod: pod["metadata"].get("creationTimestamp", ""), reverse=True)

    def _lines(self, pod: Object, **query: str) -> Iterator[str]:
        endpoint = f"{path('v1', 'Pod', self._namespace, pod['metadata']['name'])}/log"
        return self._api.lines(endpoint, patience=SILENCE_S, container=SUBMITTER, **query)


def _weight(problem: Problem) -> tuple[bool, bool]:
    """Return by what one problem stands above another."""
    return problem.preempted, not problem.passing

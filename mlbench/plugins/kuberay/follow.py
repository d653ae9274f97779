"""Follow a RayJob: its status, its pods and the submitter's log, until the run has ended.

Three threads put what they see into one queue (watches.py), and the caller's thread decides. The submitter's
log brings the event log home. It needs no storage and no right beyond `get pods/log`, and it streams during
the run. A command that lost its connection, or its machine, reads it again from the beginning.

They come in any order and any of them may be late, so none is a verdict. Before a run is given up, its
RayJob, its pods and its log to the end are fetched again. If a log cannot be read, the RayJob is left alone.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from mlbench import clock
from mlbench.clusters.submission import SubmissionLost
from mlbench.plugins.kuberay import diagnosis
from mlbench.plugins.kuberay.api import ApiError, Kubernetes
from mlbench.plugins.kuberay.diagnosis import Problem
from mlbench.plugins.kuberay.pods import Object
from mlbench.plugins.kuberay.watches import Watches
from mlbench.record import stream

LATE_S = 20.0  # s that the end of the log may come after the end of the RayJob
GRACE_S = 5.0  # s from a lost pod, or a deleted RayJob, to the fetch above
# s in which Kubernetes reports a lost node (50 s to miss it, 60 s until its pods go). A run with a lost pod
# that writes nothing in this time is lost (Ray misses a worker within 70 s).
LOST_S = 120.0
TRIES_S = 60.0  # s in which the kubelet starts a container again, after 10 and 20 s, and a Job its pod
OUTAGE_S = 900.0  # s without an answer of the API server after which the run is left alone
OPERATOR_S = 120.0  # s after which a RayJob without a status or a pod has no operator
# KubeRay v1.7.0, JobDeploymentStatus and JobStatus
ENDED = {"Complete", "Failed", "ValidationFailed", "SUCCEEDED", "FAILED", "STOPPED"}
LAST_LINES = 5  # of the output, if the run left no event


class EventLog:
    """What the submitter's log has had so far.

    - events: how many. event_time: the time of the last.
    - failed: whether the run reports that it failed or was interrupted.
    - finished: the time at which the complete log became the run's result.
    - last_lines: of what else it printed.
    """

    def __init__(self) -> None:
        self.events = 0
        self.event_time = 0.0
        self.failed = False
        self.finished: float | None = None
        self.last_lines: list[str] = []
        self._first_event: Any = None

    def read(self, line: str, *, preempted: bool) -> Iterator[dict[str, Any]]:
        """Yield the message of a line, but an event only once. Raises SubmissionLost if one is missing.

        - preempted: whether the run's nodes were taken, so that another attempt may have begun.
        """
        message = stream.decode(line)
        if message is None:
            if line.strip():
                self.last_lines = [*self.last_lines, line.strip()][-LAST_LINES:]
        elif "event" in message:
            yield from self._event(message, preempted=preempted)
        elif "end" not in message:
            yield message
        elif message["end"] == self.events and self.finished is None:
            self.finished = clock.monotonic() + (LOST_S if self.failed else 0.0)
            if self.failed:
                yield {"activity": f"failed (waiting {LOST_S:g} s for news of a lost node)"}

    def _event(self, message: dict[str, Any], *, preempted: bool) -> Iterator[dict[str, Any]]:
        if message["number"] > self.events:
            lost = message["number"] - self.events
            raise SubmissionLost(
                f"{lost} events are missing in the submitter's log, which Kubernetes has cut", goes_on=True
            )
        if message["number"] == 0:
            self._first_event = self._first_event or message["event"]
            if message["event"] != self._first_event:  # numbers of two runs cannot be compared
                raise SubmissionLost(
                    f"the cluster started the command again after {self.events} events", preempted=preempted
                )
        if message["number"] == self.events:
            if message["event"]["key"] == "run_result":
                self.failed = message["event"]["value"]["status"] in ("failed", "interrupted")
            yield message
            self.events += 1  # not before: a caller interrupted here takes it again
            self.event_time = clock.monotonic()


class JobFollower:
    """One RayJob of a namespace. `group` is the label of its pods."""

    def __init__(self, api: Kubernetes, namespace: str, name: str, *, group: str, pods: int) -> None:
        self.job: Object = {}
        self._watches = Watches(api, namespace, name, group)
        self._log = EventLog()
        self._total, self._began = pods, clock.monotonic()
        self._present: dict[str, Object] = {}
        self._outage: tuple[float, object] | None = None  # start and cause of missing answers
        self._absence: Problem | None = None  # of a pod, perhaps because the run has ended
        self._hint: tuple[Problem, float] | None = None  # why the run may be lost, and time of finding
        self._deleted: float | None = None  # time at which the RayJob was first seen as deleted
        self._ended: float | None = None  # time at which it was first seen as ended
        self._query_time = 0.0  # time of the last complete fetch from the API server
        self._activity = ""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the run's messages until its event log is complete. Raises SubmissionLost."""
        self._watches.start()
        try:
            while self._log.finished is None or clock.monotonic() < self._log.finished:
                yield from self._take(*self._watches.next())
                yield from self._require_hope()
        finally:
            self._watches.over.set()

    def last_messages(self) -> Iterator[dict[str, Any]]:
        """Yield the rest of the log of a run that will be deleted.

        Raises SubmissionLost for an ended run, whose log is its result, and if the log cannot be read.
        """
        if self._log.finished is not None:
            return
        try:
            self._refresh()
            if self._ended is not None and self._deleted is None:
                raise SubmissionLost("it has ended, and its log was not read to the end", goes_on=True)
            yield from self._read_rest()
        except ApiError as error:
            raise SubmissionLost(f"its log cannot be read to the end: {error}", goes_on=True) from error

    @property
    def pods(self) -> dict[str, Object]:
        """Return every observed pod, in its last state."""
        return self._watches.pods

    def _take(self, kind: str, value: Any) -> Iterator[dict[str, Any]]:
        if kind == "outage":
            self._outage = (self._outage[0] if self._outage else clock.monotonic()), value
            yield from self._say(f"the run is left alone while the cluster does not answer: {value}")
        elif kind == "refused":
            raise SubmissionLost(f"the run cannot be followed: {value}", goes_on=True)
        elif kind == "job":
            self._outage = None
            self.see_job(value.get(self._watches.name))
        elif kind == "pods":
            self._outage = None
            yield from self._see_pods(value)
        elif kind == "log":
            yield from self._read(value)

    def see_job(self, job: Object | None) -> None:
        """Store the current RayJob. None: it was deleted."""
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
        if self._absence is None and self._ended is None and not self._log.failed:
            self._absence = next(diagnosis.vanished(self._present, own), None)
        self._present = own
        self._watches.pods |= pods
        for problem in self._problems(pods):
            if self._hint is None or _weight(problem) > _weight(self._hint[0]):
                self._hint = problem, clock.monotonic()
        if self._log.events == 0:
            waiting = self._waiting()
            yield from self._say(waiting or diagnosis.summary(own.values(), total=self._total))

    def _require_hope(self) -> Iterator[dict[str, Any]]:
        """Raise SubmissionLost if nothing more can come. Yield the rest of the log."""
        if self._log.finished is not None and not self._log.failed:
            return
        now, before = clock.monotonic(), self._log.events
        if self._outage is not None and now - self._outage[0] > OUTAGE_S:
            text = f"{self._outage[1]}, for {OUTAGE_S:g} s (the run is left alone)"
            raise SubmissionLost(text, goes_on=True)
        if not (self._absence or self._is_due(now)) or (self._outage and now < self._query_time + GRACE_S):
            return
        self._query_time = now
        try:
            self._refresh()
            if self._absence and self._ended is None:  # the pods of an ended run are deleted
                self._hint = self._hint or (self._absence, now)
            self._absence = None
            if not self._is_due(now):
                return
            yield from self._read_rest()
        except ApiError as error:
            yield from self._take("outage", error)
            return
        self._outage = None
        if self._log.events == before and self._is_due(now):
            raise self._verdict()

    def _is_due(self, now: float) -> bool:
        """Return whether the log of a run with a reason to end should be complete by now."""
        if self._log.finished is not None and not self._log.failed:
            return False
        if self._deleted is not None:
            return now - max(self._deleted, self._log.event_time) > GRACE_S
        if self._log.finished is not None:
            return self._preempted
        if self._ended is not None:
            refused = self._status("jobDeploymentStatus") == "ValidationFailed"
            return refused or now - max(self._ended, self._log.event_time) > LATE_S
        if not self._answered and now - self._began > OPERATOR_S:
            return True
        if self._hint is None:
            return False
        patience = TRIES_S if self._hint[0].passing else GRACE_S
        trains = self._log.events and not self._log.failed
        return now - max(self._hint[1], self._log.event_time) > (LOST_S if trains else patience)

    def _refresh(self) -> None:
        """Fetch the RayJob and its pods again."""
        self.see_job(self._watches.fetch_job())
        pods = self._watches.fetch_pods()
        if self._hint and self._hint[0].passing:
            problem = max(self._problems(pods), key=_weight, default=None)
            self._hint = (problem, self._hint[1]) if problem else None

    def _problems(self, pods: Mapping[str, Object]) -> Iterator[Problem]:
        """Yield the problems of Ray's pods, and of the newest pod that follows the output."""
        newest = self._watches.submitters()[:1]
        return diagnosis.problems(
            pod
            for pod in pods.values()
            if diagnosis.NODE_TYPE in pod["metadata"].get("labels", {}) or pod in newest
        )

    def _read_rest(self) -> Iterator[dict[str, Any]]:
        """Yield the log up to its present end. Raises ApiError if it cannot be read."""
        for pod in self._watches.submitters():
            try:
                for line in self._watches.lines(pod):
                    yield from (item for item in self._read(line) if "heartbeat" not in item)
            except ApiError as error:
                if error.status not in (400, 404):  # its container has not begun, or it was deleted
                    raise
        while not self._watches.queue.empty():
            yield from self._take(*self._watches.queue.get())

    def _read(self, line: str) -> Iterator[dict[str, Any]]:
        return self._log.read(line, preempted=self._preempted)

    @property
    def _answered(self) -> bool:
        return bool(self.job.get("status") or self.pods)

    @property
    def _preempted(self) -> bool:
        return self._hint is not None and self._hint[0].preempted

    def _verdict(self) -> SubmissionLost:
        """Return the outcome of a run whose log was read and does not contain it."""
        if self._status("jobStatus") == "SUCCEEDED":
            return SubmissionLost("it succeeded, but the end of its submitter's log is missing", goes_on=True)
        if self._deleted is not None:
            return SubmissionLost("the RayJob was deleted")
        if self._hint is not None:
            return SubmissionLost(self._hint[0].sentence, preempted=self._preempted)
        return SubmissionLost(self._failure())

    def _failure(self) -> str:
        """Return why an ended RayJob left no complete event log."""
        if not self._answered:
            return f"no KubeRay operator answers: after {OPERATOR_S:g} s the RayJob has no status and no pod"
        reason, message = self._status("reason"), self._status("message")
        if self._status("jobDeploymentStatus") == "ValidationFailed":
            return f"KubeRay refuses the RayJob: {message} (--cfg manifest prints the object)"
        if reason == "PreRunningDeadlineExceeded":
            waiting = self._waiting()
            return "its pods did not all run within cluster.provision_s" + (f": {waiting}" if waiting else "")
        if reason == "DeadlineExceeded":
            return "it took longer than cluster.limit_s"
        own = [line for line in self._log.last_lines if line.startswith("mlbench: ")]
        if own:
            return own[-1].removeprefix("mlbench: ")
        said = f". Its last line: {self._log.last_lines[-1]}" if self._log.last_lines else ""
        return f"the RayJob ended as {reason or self._status('jobStatus') or 'Failed'}: {message}{said}"

    def _waiting(self) -> str | None:
        """Return why pods wait for a node, including the latest message of the cluster's autoscaler."""
        waiting = diagnosis.unschedulable(self._present.values())
        if waiting:
            with suppress(ApiError):
                events = self._watches.api.get(self._watches.path("v1", "Event"))["items"]
                waiting += diagnosis.scale_up(events, self._present)
        return waiting

    def _status(self, field: str) -> str:
        return self.job.get("status", {}).get(field) or ""

    def _say(self, activity: str) -> Iterator[dict[str, Any]]:
        if activity != self._activity:
            self._activity = activity
            yield {"activity": activity}


def _weight(problem: Problem) -> tuple[bool, bool]:
    """Return the key by which problems are ranked."""
    return problem.preempted, not problem.passing

"""What RayJob, pods, quotas and logs mean for a run: it ends, it goes on, or it is asked again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import until
from fake_cluster import FakeCluster

from mlbench.clusters.submission import SubmissionLost
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.plugins.kuberay import api, capacity, diagnosis, follow, watches

IMAGE = "cluster.image=ghcr.io/example/mlbench@sha256:" + 64 * "0"
EVENTS = [{"key": "run_configuration"}, {"key": "validation"}, {"key": "run_result", "value": {"status": ""}}]
FAILED = [*EVENTS[:2], {"key": "run_result", "value": {"status": "failed"}}]
JOB, POD_LIST, LOG_STREAM = r"/rayjobs\?", r"/pods\?", r"/log\?.*follow="


def condition(kind: str, reason: str, status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": "0/3 nodes."}]}


def container(state: str, **values: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"image": "i", "state": {state: values}}]}


DRAINED: dict[str, Any] = {"phase": "Failed"} | condition("DisruptionTarget", "EvictionByEvictionAPI")
DISRUPTED = condition("DisruptionTarget", "DeletionByTaintManager")
STARTING: dict[str, Any] = {"phase": "Pending"} | container(
    "waiting", reason="ImagePullBackOff", message="Back-off"
)
NO_NODE: dict[str, Any] = {"phase": "Pending"} | condition("PodScheduled", "Unschedulable", "False")


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Play:
    """A run that is followed while a test lets things happen to it."""

    def __init__(self, cluster: FakeCluster, time: Time) -> None:
        self.cluster, self.time = cluster, time
        metadata = {"name": "mlb-run", "labels": {"mlbench/run": "mlb-run"}}
        self.job = cluster.put("rayjobs", {"kind": "RayJob", "metadata": metadata})
        self.follower = follow.JobFollower(
            api.Kubernetes(None), "mlbench", "mlb-run", group="mlb-run", pods=2
        )
        self.events: list[Any] = []
        self.over = threading.Event()

    def followed(self, script: Callable[[], None]) -> list[Any]:
        """Return the events of the run while `script` happens."""
        threading.Thread(target=script, daemon=True).start()
        for message in self.follower.messages():
            if "event" in message:
                self.events.append(message["event"])
        return self.events

    def asked(self) -> bool:
        """Return whether the follower has asked for the RayJob anew, as it does before it gives a run up."""
        return "GET /apis/ray.io/v1/namespaces/mlbench/rayjobs/mlb-run" in self.cluster.requests

    def pass_time(self, step: float = follow.LOST_S, *, ever: bool = False) -> None:
        """Let time pass until the follower has asked for the RayJob anew, or until the test is over."""
        while (ever or not self.asked()) and not self.over.wait(0.01):
            self.time.now += step

    def pod(self, role: str, number: int = 0, **status: Any) -> str:
        return self.cluster.pod(self.job, role, number, **status)

    def starts(self) -> str:
        """Let the pods run and the follower see them; return the submitter's."""
        names = [self.pod("head"), self.pod("worker", 0), self.pod("worker", 1), self.pod("submitter")]
        self.cluster.status(self.job, "Running", jobStatus="RUNNING")
        for name in names:
            self.cluster.await_sent(name)
        return names[-1]

    def status(self, deployment: str, **fields: Any) -> None:
        self.cluster.status(self.job, deployment, **fields)

    def say(self, pod: str, first: int, count: int, events: list[Any] = EVENTS) -> None:
        said = [{"event": event, "number": number} for number, event in enumerate(events[:count])]
        self.cluster.say(pod, *said[first:], *([{"end": count}] if count == len(events) else []))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        yield cluster


@pytest.fixture
def play(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """A run, and a clock of its follower that the test alone moves."""
    fast = Time()
    monkeypatch.setattr(follow, "clock", fast)
    monkeypatch.setattr(watches, "POLL_S", 0.01)
    monkeypatch.setattr(api, "PAUSE_S", (0.01, 0.05))
    play = Play(cluster, fast)
    yield play
    play.over.set()


def memory(play: Play) -> None:
    play.starts()
    play.pod("worker", 1, **container("terminated", reason="OOMKilled", exitCode=137))


def autoscaled(play: Play) -> None:
    """GKE says why it adds no node in an event alone ("View cluster autoscaler events")."""
    name = play.pod("worker", **NO_NODE)
    play.pod("worker", 1, **NO_NODE)
    for number, (reason, text, pod) in enumerate(
        [
            ("NotTriggerScaleUp", "pod didn't trigger scale-up", name),
            ("FailedScaleUp", "GCE out of resources. ", name),
            ("FailedScheduling", "0/3 nodes are available", name),
            ("FailedScaleUp", "another's", "other"),
        ]
    ):
        event = {"kind": "Event", "metadata": {"name": f"event-{number}"}, "reason": reason}
        event |= {"involvedObject": {"kind": "Pod", "name": pod}, "message": text}
        play.cluster.put("events", event | {"lastTimestamp": f"2026-11-25T12:0{number}:00Z"})
    play.cluster.await_sent(f"{name[:-1]}1")
    play.status("Failed", reason="PreRunningDeadlineExceeded", message="too late")


def too_long(play: Play) -> None:
    play.starts()
    play.status("Failed", reason="DeadlineExceeded", message="deadline")


def mistaken(play: Play) -> None:
    play.cluster.print(play.starts(), "mlbench: workers=2 needs 2 CPUs")
    play.status("Failed", jobStatus="FAILED", reason="AppFailed", message="exit code 2")


def deleted(play: Play) -> None:
    play.starts()
    play.cluster.remove("rayjobs", "mlb-run")


def taken(play: Play) -> None:
    play.starts()
    play.pod("worker", 1, **DISRUPTED)


def gone(play: Play) -> None:
    play.starts()
    play.cluster.remove("pods", "mlb-run-worker-1")


def shut_down(play: Play) -> None:
    play.starts()
    play.pod("worker", 0, phase="Failed", reason="Terminated", message="imminent node shutdown")


def failed(play: Play) -> None:
    play.say(play.starts(), 0, 3, FAILED)
    until(lambda: len(play.events) == 3)
    play.status("Failed", jobStatus="FAILED", reason="AppFailed", message="exit code 1")


def failed_before_kubernetes_missed_its_node(play: Play) -> None:
    """Ray misses a worker within seconds, Kubernetes a node after 50 s."""
    failed(play)
    play.time.now += 2 * follow.LATE_S
    play.pod("worker", 1, **DISRUPTED)
    play.over.wait()


def begun_anew(play: Play, **worker: Any) -> None:
    play.say(play.starts(), 0, 2)
    until(lambda: len(play.events) == 2)
    if worker:
        play.pod("worker", 0, **worker)
        until(lambda: play.follower._preempted)
    play.say(play.pod("submitter", 1), 0, 3, [{"key": "run_configuration", "value": 2}, *EVENTS[1:]])
    play.cluster.close_log("mlb-run-submitter-0")


@pytest.mark.parametrize(
    ("script", "preempted", "sentence"),
    [
        (
            lambda play: play.pod("worker", **STARTING),
            False,
            "cannot run: its image cannot be pulled: i (Back-off)",
        ),
        (memory, False, "was killed: it needed more than its 11Gi memory"),
        (
            autoscaled,
            False,
            "2 pods wait for a node: 0/3 nodes; FailedScaleUp: GCE out of resources",
        ),
        (
            lambda play: play.status("ValidationFailed", message="the spec is invalid"),
            False,
            "KubeRay refuses the RayJob: the spec is invalid",
        ),
        (too_long, False, "it took longer than cluster.limit_s"),
        (mistaken, False, "workers=2 needs 2 CPUs"),
        (lambda play: None, False, "no KubeRay operator answers: after 120 s the RayJob has no status"),
        (deleted, False, "the RayJob was deleted"),
        (taken, True, "on the node worker-1 is lost: its node does not answer any more"),
        (gone, True, "is gone from the node worker-1"),
        (shut_down, True, "is lost: imminent node shutdown"),
        (failed_before_kubernetes_missed_its_node, True, "its node does not answer any more"),
        (begun_anew, False, "the cluster started the command again after 2 events"),
        (
            lambda play: begun_anew(play, **DISRUPTED),
            True,
            "the cluster started the command again after 2 events",
        ),
    ],
)
def test_what_ends_a_run_is_told_and_whether_another_may_begin(
    play: Play, script: Callable[[Play], None], preempted: bool, sentence: str
) -> None:
    def happen() -> None:
        script(play)
        play.pass_time(ever=True)

    with pytest.raises(SubmissionLost) as lost:
        play.followed(happen)
    assert sentence in str(lost.value) and lost.value.preempted is preempted


def test_a_run_that_failed_while_its_nodes_lived_is_no_preempted_one(play: Play) -> None:
    def script() -> None:
        failed(play)
        play.cluster.remove("pods", "mlb-run-worker-1")  # as after every run
        play.pass_time(ever=True)

    assert play.followed(script) == FAILED


def test_a_container_that_starts_at_a_later_try_ends_no_run(play: Play) -> None:
    def script() -> None:
        play.cluster.await_sent(play.pod("worker", **STARTING))
        play.pod("worker")
        play.pass_time()
        play.say(play.pod("submitter"), 0, 3)

    assert play.followed(script) == EVENTS


def test_a_run_whose_submitter_is_drained_and_replaced_goes_on(play: Play) -> None:
    """Also where its next event is minutes away."""

    def script() -> None:
        play.pod("head")
        first = play.pod("submitter")
        play.say(first, 0, 2)
        play.cluster.await_sent(first)
        play.pod("submitter", **DRAINED)
        play.cluster.close_log(first)
        second = play.pod("submitter", 1)
        play.say(second, 0, 2)
        play.cluster.await_sent(second)
        play.pass_time()
        threading.Event().wait(0.3)  # in which it would be given up
        play.say(second, 2, 3)

    assert play.followed(script) == EVENTS


@pytest.mark.parametrize("events", [EVENTS, FAILED], ids=["it reached its goal", "it failed"])
def test_pods_that_are_gone_are_no_verdict_while_job_and_log_are_silent(
    play: Play, events: list[dict[str, Any]]
) -> None:
    """As after a laptop's sleep: the run has ended, its pods are deleted, and other connections hang."""

    def script() -> None:
        submitter = play.starts()
        play.say(submitter, 0, 2)
        until(lambda: len(play.events) == 2)
        for pattern in (JOB, LOG_STREAM):
            play.cluster.hold(pattern, play.over.is_set)
        play.say(submitter, 2, 3, events)
        play.status("Complete", jobStatus="SUCCEEDED")
        for pod in ("head-0", "worker-0", "worker-1"):
            play.cluster.remove("pods", f"mlb-run-{pod}")
        play.pass_time(2.0, ever=True)

    assert play.followed(script) == events


@pytest.mark.parametrize("complete", [True, False], ids=["it has ended", "it is being deleted"])
@pytest.mark.parametrize("late", [(JOB,), (POD_LIST,), (LOG_STREAM,), (JOB, POD_LIST, LOG_STREAM)])
def test_a_run_whose_node_was_taken_is_read_to_its_end_in_whatever_order_the_answers_come(
    play: Play, late: tuple[str, ...], complete: bool
) -> None:
    """What is late is held until the follower asks for the RayJob anew."""
    play.cluster.node("worker-1", "worker")
    for name in ("head", "worker"):
        play.pod(name)
    play.say(play.pod("submitter"), 0, 3)
    if complete:
        play.status("Complete", jobStatus="SUCCEEDED")
    else:
        deleted = {"deletionTimestamp": "2026-11-22T07:00:00Z"}  # until its pods are gone
        play.cluster.put("rayjobs", play.job | {"metadata": play.job["metadata"] | deleted})
    play.pod("worker", 1, **DISRUPTED)
    for pattern in late:
        play.cluster.hold(pattern, play.asked)
    assert play.followed(play.pass_time) == EVENTS


def test_an_api_server_that_fails_in_the_middle_changes_nothing(play: Play) -> None:
    def script() -> None:
        submitter = play.starts()
        play.say(submitter, 0, 2)
        play.cluster.fail("STREAM", "/log", 1)
        play.cluster.fail("GET", r"/(rayjobs|pods)\?", 500, 0, 429, 401)
        play.cluster.forget()
        play.cluster.fail("GET", "/log", 502)
        until(lambda: sum("/log" in request for request in play.cluster.requests) >= 3)
        play.say(submitter, 2, 3)
        play.status("Complete", jobStatus="SUCCEEDED")

    assert play.followed(script) == EVENTS
    assert any("watch=" in request for request in play.cluster.requests)


def test_a_log_that_cannot_be_read_ends_no_run(play: Play) -> None:
    def script() -> None:
        play.cluster.fail("GET", "/log", *[500] * 2000)
        play.say(play.starts(), 0, 3)
        play.status("Complete", jobStatus="SUCCEEDED")
        play.pass_time(follow.OUTAGE_S / 10, ever=True)

    with pytest.raises(SubmissionLost, match="for 900 s") as lost:
        play.followed(script)
    play.cluster._faults.clear()
    assert lost.value.goes_on and play.cluster.names("rayjobs") == ["mlb-run"]


def test_a_pod_that_its_node_had_no_room_for_is_told_as_evicted_and_not_as_preempted() -> None:
    """The kubelet sets the condition of a shutdown, too (kubernetes.io/docs, "Disruptions")."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    why = "The node was low on resource: ephemeral-storage."
    pod = {
        "metadata": {"name": "w", "labels": {diagnosis.NODE_TYPE: "worker"}},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Failed", "reason": "Evicted", "message": why, "conditions": [condition]},
    }
    (problem,) = diagnosis.problems([pod])
    assert "evicted" in problem.sentence and problem.sentence.endswith(why)
    assert not problem.preempted


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({}, True),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, True),
        ({"scopes": ["BestEffort"]}, False),
        (
            {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}},
            False,
        ),
    ],
)
def test_a_quota_of_other_pods_refuses_no_run(spec: dict[str, Any], counts: bool) -> None:
    quota = {"metadata": {"name": "few"}, "spec": spec, "status": {"hard": {"pods": "1"}}}

    def get(path: str) -> dict[str, Any]:
        return {"items": [quota] if path.endswith("quotas") else []}

    experiment = compose(["task=logreg", "workers=2", "hardware=gcp_n1_standard_4", "cluster=kuberay", IMAGE])
    client: Any = SimpleNamespace(get=get)
    refusal = pytest.raises(UserError, match="quota few .* 1 pods, .* 4")
    with refusal if counts else nullcontext():
        capacity.require_room(client, experiment)


@pytest.mark.parametrize(("gpus", "refused"), [({}, False), ({"nvidia.com/gpu": "0"}, True)])
def test_a_node_that_was_just_added_refuses_no_run(gpus: dict[str, str], refused: bool) -> None:
    """As of a run that was interrupted while its nodes came: their GPUs are told once the driver is there."""

    def node(role: str, **have: str) -> dict[str, Any]:
        allocatable = {"cpu": "3920m", "memory": "13Gi", "pods": "110"} | have
        return {"metadata": {"labels": {"mlbench/role": role}}, "status": {"allocatable": allocatable}}

    def get(path: str) -> dict[str, Any]:
        return {"items": [node("system"), node("worker", **gpus)] if path.endswith("nodes") else []}

    words = ["task=gnmt", "workers=2", "hardware=gcp_n1_t4", "backend=nccl", "cluster=kuberay", IMAGE]
    experiment = compose([*words, "cluster.autoscaling=true"])
    client: Any = SimpleNamespace(get=get)
    refusal = pytest.raises(UserError, match="0 of these")
    with refusal if refused else nullcontext():
        capacity.require_room(client, experiment)

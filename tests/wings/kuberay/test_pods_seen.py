"""What the state of pods and quotas means for a run: it ends, it goes on, or it is asked again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cluster import FakeCluster

from mlbench.clusters.submission import SubmissionLost
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.wings.kuberay import api, capacity, diagnosis, follow

IMAGE = "cluster.image=ghcr.io/example/mlbench@sha256:" + 64 * "0"
DRAINED = {
    "phase": "Failed",
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
}
STARTING = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
EVENTS = [{"key": "run_configuration"}, {"key": "validation"}, {"key": "run_result", "value": {"status": ""}}]


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The follower's clock, which the test alone moves."""
    fast = Time()
    monkeypatch.setattr(follow, "clock", fast)
    monkeypatch.setattr(follow, "POLL_S", 0.01)
    return fast


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        yield cluster


def followed(
    cluster: FakeCluster, time: Time, script: Callable[[Any, Callable[[], None]], None]
) -> list[Any]:
    """Return the events of a run while `script` happens, which may let time pass until it is asked anew."""
    metadata = {"name": "mlb-run", "labels": {"mlbench/run": "mlb-run"}}
    job = cluster.put("rayjobs", {"kind": "RayJob", "metadata": metadata})
    follower = follow.JobFollower(api.Kubernetes(None), "mlbench", "mlb-run", group="mlb-run", pods=2)

    def pass_time() -> None:
        while "GET /apis/ray.io/v1/namespaces/mlbench/rayjobs/mlb-run" not in cluster.requests:
            time.now += follow.LOST_S
            threading.Event().wait(0.01)

    threading.Thread(target=script, args=(job, pass_time), daemon=True).start()
    return [message["event"] for message in follower.messages() if "event" in message]


def say(cluster: FakeCluster, pod: str, count: int) -> None:
    events = [{"event": event, "number": number} for number, event in enumerate(EVENTS[:count])]
    cluster.say(pod, *events, *([{"end": count}] if count == len(EVENTS) else []))


def test_a_container_that_starts_at_a_later_try_ends_no_run(cluster: FakeCluster, time: Time) -> None:
    def script(job: Any, pass_time: Callable[[], None]) -> None:
        name = cluster.pod(job, "worker", **STARTING)
        cluster.await_sent(name)
        cluster.pod(job, "worker")
        pass_time()
        say(cluster, cluster.pod(job, "submitter"), 3)

    assert followed(cluster, time, script) == EVENTS


def test_a_container_that_starts_at_no_try_ends_the_run(cluster: FakeCluster, time: Time) -> None:
    def script(job: Any, pass_time: Callable[[], None]) -> None:
        cluster.await_sent(cluster.pod(job, "worker", **STARTING))
        pass_time()

    with pytest.raises(SubmissionLost, match="cannot run: its image cannot be pulled"):
        followed(cluster, time, script)


def test_a_run_whose_submitter_is_drained_and_replaced_goes_on(cluster: FakeCluster, time: Time) -> None:
    """Also where its next event is minutes away."""

    def script(job: Any, pass_time: Callable[[], None]) -> None:
        cluster.pod(job, "head")
        first = cluster.pod(job, "submitter")
        say(cluster, first, 2)
        cluster.await_sent(first)
        cluster.pod(job, "submitter", **DRAINED)
        cluster.close_log(first)
        second = cluster.pod(job, "submitter", 1)
        say(cluster, second, 2)
        cluster.await_sent(second)
        pass_time()
        threading.Event().wait(0.3)  # in which it would be given up
        say(cluster, second, 3)

    assert followed(cluster, time, script) == EVENTS


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
    assert problem.sentence == f"the pod w was evicted from the node n: {why}"
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
    refusal = pytest.raises(UserError, match="the quota few leaves 1 pods, workers=2 needs 4")
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
    refusal = pytest.raises(UserError, match="0 of these are large enough")
    with refusal if refused else nullcontext():
        capacity.require_room(client, experiment)

"""A run from submission to record against an API server over HTTP, whose operator follows a script."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import real_server
from driven import Run
from fake_cluster import FakeCluster, reference
from real_cluster import RealCluster
from test_kuberay_server import names
from test_kuberay_server import server as server  # a fixture

from mlbench import clock
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.launch import execute, remote_run
from mlbench.launch.output import Output
from mlbench.launch.remote_run import SubmitSettings
from mlbench.record import events
from mlbench.record.reader import load
from mlbench.record.record import Record
from mlbench.run import main
from mlbench.terminal import show
from mlbench.tracking import uploader
from mlbench.tracking.sync import uploaded_runs
from mlbench.wings.kuberay import api, check, follow, objects, rayjob, shared
from mlbench.wings.kuberay.api import path
from mlbench.wings.kuberay.capacity import quantity

pytestmark = pytest.mark.slow

IMAGE = "cluster.image=ghcr.io/example/mlbench@sha256:" + 64 * "0"
WORDS = ("task=logreg", "workers=2", "hardware=gcp_n1_standard_4")
NODES = {"head-0": "system", "worker-0": "worker", "worker-1": "worker"}
Log = list[dict[str, Any]]


class Time:
    """The follower's clock, which runs `rate` times as fast as others, and a `step` at every look."""

    def __init__(self) -> None:
        self.rate, self.step, self._now, self._last = 20.0, 0.0, 0.0, time.monotonic()

    def monotonic(self) -> float:
        last, self._last = self._last, time.monotonic()
        self._now += self.rate * (self._last - last) + self.step
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture(autouse=True)
def follower(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Let time pass faster than in a real cluster."""
    fast = Time()
    monkeypatch.setattr(follow, "clock", fast)
    monkeypatch.setattr(follow, "POLL_S", 0.05)
    monkeypatch.setattr(api, "PAUSE_S", (0.05, 0.2))
    monkeypatch.setattr(objects, "POLL_S", 0.05)
    monkeypatch.setattr(execute, "STORE_WAIT_S", 300.0)  # on a busy machine, too
    return fast


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """The event log of a run in a pod: it reaches its goal at its third validation."""
    root = tmp_path_factory.mktemp("pod")
    run = Run(root, *WORDS[2:], "cluster=attached", name="2026-11-22T070000-000-logreg-w2", seed=7)
    for value in (50.0, 80.0, 99.5):
        run.validate(value)
    record = run.end("goal_reached")
    assert record.status == "goal_reached"
    return events.read(run.log)


@pytest.fixture(params=["fake", *(["real"] if real_server.named() else [])])
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeCluster]:
    fake = request.param == "fake"
    cluster: Any = FakeCluster() if fake else RealCluster(request.getfixturevalue("server"))
    with cluster:
        for name, role in NODES.items():
            cluster.node(name, role)
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        yield cluster
        nothing_is_left(cluster)


only_fake = pytest.mark.parametrize("cluster", ["fake"], indirect=True)  # a real server fails when it likes


class Terminal(show.Terminal):
    """It shows runs and draws no figures, which takes a second each; test_run_figures.py draws them."""

    figures = Output.figures


@pytest.fixture
def run(cluster: FakeCluster, tmp_path: Path, empty_store: Path) -> Iterator[Callable[..., Record]]:
    """Submit a run and follow it to its record; whatever happens, nobody writes to MLflow afterwards."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")

    def start(*overrides: str, settings: SubmitSettings = SubmitSettings()) -> Any:  # noqa: B008  (frozen)
        store = f"tracking_uri=sqlite:///{tmp_path / 'mlflow.db'}"
        workers = () if any(word.startswith("workers=") for word in overrides) else WORDS[1:2]
        every = [
            *WORDS[::2],
            "seed=7",
            "cluster=kuberay",
            IMAGE,
            f"cluster.namespace={cluster.namespace}",
            f"output_root={tmp_path}",
            store,
            *workers,
            *overrides,
        ]
        experiment = compose(every)
        return remote_run.execute(
            experiment, begun=clock.wall(), overrides=every, settings=settings, output=Terminal()
        )

    yield start
    until(lambda: not any(thread.name == "mlflow" for thread in threading.enumerate()))


def starts(cluster: FakeCluster, job: Any) -> str:
    """Do what happens until the command runs; return the submitter's pod."""
    cluster.status(job, "Initializing")
    cluster.pod(job, "head")
    for number in range(2):
        cluster.pod(job, "worker", number)
    submitter = cluster.pod(job, "submitter")
    cluster.status(job, "Running", jobStatus="RUNNING")
    return submitter


def messages(log: Log) -> Log:
    return [{"event": event, "number": number} for number, event in enumerate(log)]


def finishes(log: Log) -> Any:
    """Return a script in which all goes well."""

    def script(cluster: FakeCluster, job: Any) -> None:
        submitter = starts(cluster, job)
        cluster.print(submitter, "Waiting for Ray Dashboard GCS to become healthy", "SUCC: submitted")
        cluster.say(submitter, {"connected": {"threads": 3, "oversubscribed": False}})
        cluster.say(submitter, *messages(log), {"end": len(log)})
        cluster.print(submitter, "GOAL REACHED: what people read in a pod's log")
        cluster.close_log(submitter)
        cluster.status(
            job, "Complete", jobStatus="SUCCEEDED", rayJobInfo={"startTime": "2026-11-22T07:00:00Z"}
        )

    return script


def copied(folder: Path) -> Log:
    """Return the events that were copied so far."""
    return [event for path in folder.glob(f"*/{events.NAME}") for event in events.read(path)]


def nothing_is_left(cluster: FakeCluster) -> None:
    kinds = ("rayjobs", "pods", "networkpolicies", "rayclusters")
    until(lambda: not any(map(cluster.names, kinds)))


def test_a_run_is_submitted_shown_collected_and_deleted(
    cluster: FakeCluster, run: Any, log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.script = finishes(log)
    record = run()
    folder = tmp_path / record.run_id
    assert record.status == "goal_reached" and record.time_to_accuracy == 12.0 and record.seed == 7
    copied = events.read(folder / events.NAME)
    assert [event for event in copied if event["key"] != "submission"] == log
    assert load(folder / "record.json") == record
    submission = record.submission
    assert submission is not None and submission.preempted is None
    assert submission.started == "2026-11-22T07:00:00Z"
    assert "cluster=kuberay" in record.command and record.experiment.cluster.name == "attached"
    assert [(pod["role"], pod["node"], pod["zone"]) for pod in submission.pods] == [
        ("head", "head-0", "zone-a"),
        *[("worker", f"worker-{number}", "zone-a") for number in range(2)],
    ]
    assert {pod["kubernetes"] for pod in submission.pods} == {"v1.34.1"}
    nothing_is_left(cluster)
    assert "mlbench-runner" in cluster.names("serviceaccounts")
    assert cluster.namespace in cluster.names("namespaces")
    assert record.run_id in uploaded_runs(f"sqlite:///{tmp_path / 'mlflow.db'}")
    shown = capsys.readouterr()
    assert "GOAL REACHED" in shown.out and "submitted as mlb-logreg-2-" in shown.err
    before = list(cluster.requests)
    assert run() == record and cluster.requests == before  # shown again, not measured again


@only_fake
def test_an_api_server_that_fails_in_the_middle_changes_nothing(
    cluster: FakeCluster, run: Any, log: Log
) -> None:
    cluster.fail("GET", "namespaces/mlbench$", 503)
    cluster.fail("POST", "networkpolicies", 500, 0)

    def script(cluster: FakeCluster, job: Any) -> None:
        submitter = starts(cluster, job)
        every = messages(log)
        cluster.say(submitter, *every[:2])
        cluster.fail("STREAM", "/log", 1)
        cluster.fail("GET", "/(rayjobs|pods)\\?", 500, 0, 429, 401)
        cluster.forget()
        cluster.fail("GET", "/log", 502)
        until(lambda: sum("/log" in request for request in cluster.requests) >= 3)
        cluster.say(submitter, *every[2:], {"end": len(log)})
        cluster.status(job, "Complete", jobStatus="SUCCEEDED")

    cluster.script = script
    record = run()
    assert record.status == "goal_reached" and len(record.validations) == 3
    assert any("watch=" in request for request in cluster.requests)
    nothing_is_left(cluster)


def waits(reason: str, message: str) -> Any:
    return {
        "containerStatuses": [{"image": "i", "state": {"waiting": {"reason": reason, "message": message}}}]
    }


UNSCHEDULABLE: Any = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient cpu.",
        }
    ]
}
KILLED: Any = {"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}
DISRUPTED: Any = {
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]
}


def pull(cluster: FakeCluster, job: Any) -> None:
    cluster.pod(job, "worker", phase="Pending", **waits("ImagePullBackOff", "Back-off pulling image"))


def unschedulable(cluster: FakeCluster, job: Any) -> None:
    cluster.pod(job, "head")
    for number in range(2):
        cluster.pod(job, "worker", number, phase="Pending", **UNSCHEDULABLE)
    cluster.status(job, "Failed", reason="PreRunningDeadlineExceeded", message="too late")


def memory(cluster: FakeCluster, job: Any) -> None:
    starts(cluster, job)
    cluster.pod(job, "worker", 1, **KILLED)


def refused(cluster: FakeCluster, job: Any) -> None:
    cluster.status(job, "ValidationFailed", reason="ValidationFailed", message="the spec is invalid")


def too_long(cluster: FakeCluster, job: Any) -> None:
    starts(cluster, job)
    cluster.status(job, "Failed", reason="DeadlineExceeded", message="deadline")


def mistaken(cluster: FakeCluster, job: Any) -> None:
    submitter = starts(cluster, job)
    cluster.print(submitter, "mlbench: workers=2 needs 2 CPUs, the cluster has room for 1 on 1 node(s)")
    cluster.status(job, "Failed", jobStatus="FAILED", reason="AppFailed", message="exit code 2")


def ignored(cluster: FakeCluster, job: Any) -> None:
    """No operator: the RayJob stays as it was created."""


def deleted(cluster: FakeCluster, job: Any) -> None:
    starts(cluster, job)
    cluster.remove("rayjobs", job["metadata"]["name"])


def taken(cluster: FakeCluster, job: Any) -> None:
    starts(cluster, job)
    cluster.pod(job, "worker", 1, **DISRUPTED)


def gone(cluster: FakeCluster, job: Any) -> None:
    starts(cluster, job)
    name = f"{job['metadata']['name']}-worker-1"
    cluster.await_sent(name)
    cluster.remove("pods", name)


def shut_down(cluster: FakeCluster, job: Any) -> None:
    starts(cluster, job)
    cluster.pod(job, "worker", 0, phase="Failed", reason="Terminated", message="imminent node shutdown")


@only_fake
def test_the_autoscaler_s_newest_reason_is_told_with_a_pod_that_waits(cluster: FakeCluster, run: Any) -> None:
    """GKE says why it adds no node in an event alone ("View cluster autoscaler events")."""

    def script(cluster: FakeCluster, job: Any) -> None:
        name = cluster.pod(job, "worker", phase="Pending", **UNSCHEDULABLE)
        for number, (reason, text, pod) in enumerate(
            [
                ("NotTriggerScaleUp", "pod didn't trigger scale-up", name),
                ("FailedScaleUp", "Node scale up in zones failed: GCE out of resources. ", name),
                ("FailedScheduling", "0/3 nodes are available", name),
                ("FailedScaleUp", "another's", "other"),
            ]
        ):
            event = {"kind": "Event", "metadata": {"name": f"event-{number}"}, "reason": reason}
            event |= {"involvedObject": {"kind": "Pod", "name": pod}, "message": text}
            cluster.put("events", event | {"lastTimestamp": f"2026-11-25T12:0{number}:00Z"})
        cluster.status(job, "Failed", reason="PreRunningDeadlineExceeded", message="too late")

    cluster.script = script
    error = run().error
    assert error.endswith(
        "3 Insufficient cpu; FailedScaleUp: Node scale up in zones failed: GCE out of resources"
    )


@pytest.mark.parametrize(
    ("script", "status", "sentence"),
    [
        (pull, "failed", "cannot run: its image cannot be pulled: i (Back-off pulling image)"),
        (unschedulable, "failed", "2 pods wait for a node: 0/3 nodes are available: 3 Insufficient cpu"),
        (memory, "failed", "was killed: it needed more than its 11Gi memory"),
        (refused, "failed", "KubeRay refuses the RayJob: the spec is invalid"),
        (too_long, "failed", "it took longer than cluster.limit_s"),
        (mistaken, "failed", "workers=2 needs 2 CPUs, the cluster has room for 1 on 1 node(s)"),
        (ignored, "failed", "no KubeRay operator answers: after 120 s the RayJob has no status"),
        (deleted, "failed", "somebody deleted the RayJob"),
        (taken, "preempted", "on the node worker-1 is lost: its node does not answer any more"),
        (gone, "preempted", "is gone from the node worker-1"),
        (shut_down, "preempted", "is lost: imminent node shutdown"),
    ],
)
def test_what_ends_a_run_is_told_in_plain_words_and_leaves_nothing(
    cluster: FakeCluster, run: Any, script: Any, status: str, sentence: str
) -> None:
    cluster.script = script
    record = run()
    assert (record.status, record.time_to_accuracy) == (status, None)
    assert sentence in record.error
    nothing_is_left(cluster)


def test_a_preempted_run_is_exit_code_1_and_another_only_as_often_as_retries_say(
    cluster: FakeCluster, empty_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = shutil.copy(empty_store, tmp_path / "mlflow.db")
    cluster.script = taken
    places = [f"output_root={tmp_path}", f"tracking_uri=sqlite:///{store}"]
    places += [f"cluster.namespace={cluster.namespace}"]
    assert main([*WORDS, "cluster=kuberay", IMAGE, *places, "retries=1"]) == 1
    assert len(list(tmp_path.glob("*/record.json"))) == 2
    assert capsys.readouterr().err.count("retry 1 of 1") == 1


def test_a_preempted_run_keeps_what_it_measured_and_is_started_anew_as_another(
    cluster: FakeCluster, run: Any, log: Log, tmp_path: Path
) -> None:
    def script(cluster: FakeCluster, job: Any) -> None:
        if len(list(tmp_path.glob("*/record.json"))) == 0:
            submitter = starts(cluster, job)
            renamed = [log[0] | {"value": log[0]["value"] | {"run_id": "2026-11-22T065900-000-logreg-w2-7"}}]
            failed = log[-2] | {
                "value": log[-2]["value"] | {"status": "failed", "error": "died", "result": None}
            }
            cluster.say(submitter, *messages([*renamed, *log[1:3], failed]))
            cluster.pod(job, "worker", 1, **DISRUPTED)
        else:
            finishes(log)(cluster, job)

    cluster.script = script
    record = run(settings=SubmitSettings(retries=1))
    assert record.status == "goal_reached"
    first = load(tmp_path / "2026-11-22T065900-000-logreg-w2-7" / "record.json")
    assert first.status == "preempted" and len(first.validations) == 2 and first.time_to_accuracy is None
    assert first.submission is not None and record.submission is not None
    assert first.submission.name != record.submission.name


@pytest.mark.parametrize(("lost", "status"), [(True, "preempted"), (False, "failed")])
def test_a_run_that_failed_before_kubernetes_missed_its_node_is_preempted(
    cluster: FakeCluster, run: Any, log: Log, follower: Time, tmp_path: Path, lost: bool, status: str
) -> None:
    """Ray misses a worker within seconds, Kubernetes a node after 50 s."""
    follower.rate = 0.0 if lost else 100.0

    def script(cluster: FakeCluster, job: Any) -> None:
        submitter = starts(cluster, job)
        value = log[-2]["value"] | {"status": "failed", "error": "rank 0: RuntimeError", "result": None}
        events_of = [*log[:3], log[-2] | {"value": value}]
        cluster.say(submitter, *messages(events_of), {"end": len(events_of)})
        cluster.status(job, "Failed", jobStatus="FAILED", reason="AppFailed", message="exit code 1")
        if lost:
            until(lambda: len(copied(tmp_path)) == len(events_of))
            follower.advance(2 * follow.LATE_S)
            cluster.pod(job, "worker", 1, **DISRUPTED)
        else:
            cluster.remove("pods", f"{job['metadata']['name']}-worker-1")  # as after every run

    cluster.script = script
    record = run()
    assert (record.status, len(record.validations)) == (status, 2)


def test_a_run_that_ended_before_its_node_went_is_what_it_measured(
    cluster: FakeCluster, run: Any, log: Log
) -> None:
    def script(cluster: FakeCluster, job: Any) -> None:
        cluster.say(starts(cluster, job), *messages(log), {"end": len(log)})
        cluster.pod(job, "worker", 1, **DISRUPTED)

    cluster.script = script
    assert run().status == "goal_reached"


def test_a_run_that_another_command_follows_is_left_to_it(
    cluster: FakeCluster, run: Any, log: Log, tmp_path: Path
) -> None:
    folder = tmp_path / log[0]["value"]["run_id"]
    folder.mkdir()
    descriptor = uploader.lock(folder)
    cluster.script = finishes(log)
    try:
        with pytest.raises(UserError, match="another command follows this run") as refused:
            run()
    finally:
        os.close(descriptor)
    (name,) = cluster.names("rayjobs")
    assert f"attach={name}" in refused.value.hint
    cluster.remove("rayjobs", name)


def test_a_quantity_is_read_in_every_form_of_kubernetes() -> None:
    texts = ("500m", "2", "15Gi", "12e3", "1E", "250u", "123Mi")
    numbers = (0.5, 2, 15 * 2**30, 12000, 10**18, 0.00025, 123 * 2**20)
    assert tuple(map(quantity, texts)) == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("change", "sentence", "hint"),
    [
        ("none", "need 9 node(s) with cpu=3, memory=11Gi; of 3 node(s) 2 have", "fewer workers"),
        ("labels", "of 1 node(s) 0 have the labels mlbench/role=worker", "kubectl label"),
        ("small", "0 of these are large enough, and the most that one allocates is cpu=2", "the hardware"),
        ("quota", "the quota team leaves 10 requests.cpu, workers=9 needs 29.25", "fewer workers"),
        ("head", "the head of workers=2 need 1 node(s) with cpu=2, memory=6Gi", "kubectl label"),
        ("kuberay", "KubeRay is not installed", "cluster up existing context=NAME"),
        ("rights", "cannot be submitted: a fault of the tests", "mlbench-submitter"),
    ],
)
def test_an_ask_that_can_never_be_scheduled_is_refused_before_anything_is_created(
    cluster: FakeCluster, run: Any, change: str, sentence: str, hint: str
) -> None:
    workers = "workers=9"
    if change in ("kuberay", "rights") and not isinstance(cluster, FakeCluster):
        pytest.skip("a real server has its KubeRay and its rights")
    if change == "labels":
        cluster.remove("nodes", "worker-0")
        cluster.remove("nodes", "worker-1")
    elif change == "small":
        for number in range(2):
            cluster.node(f"worker-{number}", "worker", cpu="2000m")
    elif change == "quota":
        status: Any = {"hard": {"requests.cpu": "12", "pods": "20"}, "used": {"requests.cpu": "2"}}
        if not isinstance(cluster, FakeCluster):  # what is used is reckoned there, too
            status = {"hard": {"requests.cpu": "10", "pods": "20"}}
        cluster.put("resourcequotas", {"metadata": {"name": "team"}, "status": status})
    elif change == "kuberay":
        cluster.installed = False
    elif change in ("head", "rights"):
        workers = "workers=2"
        if change == "head":
            cluster.remove("nodes", "head-0")
        else:
            cluster.fail("POST", "rayjobs", 403)
    with pytest.raises(UserError) as refused:
        run(*([workers] if workers == "workers=9" else []))
    assert sentence in refused.value.message and hint in refused.value.hint
    assert not any(request.startswith("POST") and "dryRun" not in request and "rayjobs" in request
                   for request in cluster.requests)  # fmt: skip
    assert cluster.names("rayjobs") == []


@only_fake
def test_what_the_server_would_refuse_is_told_before_anything_is_created(
    cluster: FakeCluster, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the runs of a sweep, of which nothing runs yet; their namespace may not be there."""
    experiment = compose([*WORDS, "cluster=kuberay", IMAGE, f"cluster.namespace={cluster.namespace}"])
    check(experiment)
    assert cluster.names("namespaces") == []
    made = rayjob.run_objects

    def misspell(*arguments: Any, **settings: Any) -> Any:
        *others, job = made(*arguments, **settings)
        return [*others, job | {"spec": job["spec"] | {"entryPoint": "x"}}]

    monkeypatch.setattr(rayjob, "run_objects", misspell)
    with pytest.raises(UserError, match="cannot be submitted: .*'entryPoint' was unexpected") as refused:
        run()
    assert refused.value.hint == "--cfg manifest shows the object"
    with pytest.raises(UserError, match="'entryPoint' was unexpected"):
        check(experiment)
    posts = [request for request in cluster.requests if request.startswith("POST") and "rayjobs" in request]
    assert len(posts) == 3 and all("dryRun=All" in request for request in posts)


@only_fake
def test_what_only_the_operator_refuses_ends_the_run_with_its_sentence(
    cluster: FakeCluster, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rayjob, "run_name", lambda _: 48 * "a")
    record = run()
    sentence = "has 48 characters, a RayJob's may have 47; --cfg manifest shows the object"
    assert record.status == "failed" and record.error.endswith(sentence)
    assert "KubeRay refuses the RayJob: " in record.error
    nothing_is_left(cluster)


@only_fake
def test_bookmarks_keep_the_version_of_a_watch_young_in_which_nothing_happens(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "WATCH_S", 1)
    seen = api.Kubernetes(None).watch(path("v1", "Pod", cluster.namespace))
    assert names(seen) == set()
    metadata = {"name": "other"}
    cluster.put("services", {"kind": "Service", "metadata": metadata})
    latest = cluster.item("services", "other")["metadata"]["resourceVersion"]

    def watches() -> list[str]:
        return [request for request in cluster.requests if "watch=" in request]

    def put() -> None:
        until(lambda: len(watches()) == 2)
        cluster.put("pods", {"kind": "Pod", "metadata": metadata})

    threading.Thread(target=put, daemon=True).start()
    assert names(seen) == {"other"}
    assert f"resourceVersion={latest}" in watches()[1]
    assert len(cluster.requests) == 1 + len(watches())
    cluster.remove("pods", "other")


def test_nodes_that_something_adds_are_waited_for(cluster: FakeCluster, run: Any, log: Log) -> None:
    cluster.remove("nodes", "worker-1")
    cluster.script = finishes(log)
    assert run("cluster.autoscaling=true").status == "goal_reached"


def keeps(cluster: FakeCluster, job: Any, sizes: list[int]) -> None:
    """Keep a RayCluster and give it the workers that are asked of it, as the operator does."""
    spec, name = job["spec"]["rayClusterSpec"], f"{job['metadata']['name']}-rc"
    metadata = {"name": name, "ownerReferences": [reference(job)]}
    cluster.put("rayclusters", {"kind": "RayCluster", "metadata": metadata, "spec": spec})
    cluster.status(job, "Running", jobStatus="RUNNING")
    while job["metadata"]["name"] in cluster.names("rayjobs"):
        current = cluster.item("rayclusters", name)
        size = current["spec"]["workerGroupSpecs"][0]["replicas"]
        if current.get("status", {}).get("availableWorkerReplicas") != size:
            sizes.append(size)
            cluster.pod(job, "head")
            for number in range(size):
                cluster.pod(job, "worker", number)
            status = {"state": "ready", "availableWorkerReplicas": size}
            cluster.put("rayclusters", current | {"status": status})
        time.sleep(0.05)


def test_runs_on_nodes_of_one_shape_share_a_ray_cluster_that_grows(
    cluster: FakeCluster, run: Any, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "POLL_S", 0.05)
    sizes: list[int] = []

    def script(cluster: FakeCluster, job: Any) -> None:
        if "mlbench/shared" in job["metadata"]["labels"]:
            return keeps(cluster, job, sizes)
        submitter = cluster.pod(job, "submitter")
        cluster.say(submitter, *messages(log), {"end": len(log)})
        cluster.status(job, "Complete", jobStatus="SUCCEEDED")

    cluster.script = script
    overrides = ("force=true", "cluster.shared=mlb-sweep-1")
    namespace = f"cluster.namespace={cluster.namespace}"
    for word in ("workers=1", "workers=2"):
        assert run(word, *overrides).status == "goal_reached"
        if isinstance(cluster, FakeCluster):  # which has used what the first run has left there
            status = {"hard": {"pods": "4"}, "used": {"pods": "3"}}
            cluster.put("resourcequotas", {"metadata": {"name": "team"}, "status": status})
    (owner,) = cluster.names("rayjobs")
    assert sizes == [1, 2] and cluster.names("rayclusters") == [f"{owner}-rc"]
    # Another shape: the first costs nothing more.
    run("workers=2", *overrides, "cluster.worker_memory_gib=10")
    (other,) = cluster.names("rayjobs")
    assert other != owner and cluster.names("rayclusters") == [f"{other}-rc"]
    experiment = compose([*WORDS, "cluster=kuberay", IMAGE, namespace, overrides[1]])
    shared.end_sweep(experiment)
    nothing_is_left(cluster)


def test_no_cluster_and_no_extra_are_told() -> None:
    with pytest.raises(UserError, match="no Kubernetes cluster can be reached with the context nowhere"):
        api.Kubernetes("nowhere")


def until(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)

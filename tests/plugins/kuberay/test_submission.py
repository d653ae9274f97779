"""A run from submission to record against an API server over HTTP, whose operator follows a script."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import until
from driven import Run
from fake_cluster import FakeCluster, reference
from test_pods_seen import DISRUPTED

from mlbench import clock
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.launch import execute, remote_run
from mlbench.launch.output import Output
from mlbench.launch.remote_run import SubmitSettings
from mlbench.plugins.kuberay import api, check, follow, objects, rayjob, shared, watches
from mlbench.plugins.kuberay.api import path
from mlbench.record import events
from mlbench.record.reader import load
from mlbench.record.record import Record
from mlbench.run import main
from mlbench.terminal import show
from mlbench.tracking import uploader
from mlbench.tracking.sync import uploaded_runs

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
    monkeypatch.setattr(watches, "POLL_S", 0.05)
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


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        for name, role in NODES.items():
            cluster.node(name, role)
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        yield cluster
        nothing_is_left(cluster)


class Terminal(show.Terminal):
    """It shows runs and draws no figures, which takes a second each; test_run_charts.py draws them."""

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
    until(written)


def written() -> bool:
    """Return whether nobody writes to MLflow any more."""
    return not any(thread.name == "mlflow" for thread in threading.enumerate())


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


def taken(cluster: FakeCluster, job: Any) -> None:
    starts(cluster, job)
    cluster.pod(job, "worker", 1, **DISRUPTED)


def test_a_preempted_run_is_exit_code_1(cluster: FakeCluster, empty_store: Path, tmp_path: Path) -> None:
    store = shutil.copy(empty_store, tmp_path / "mlflow.db")
    cluster.script = taken
    places = [f"output_root={tmp_path}", f"tracking_uri=sqlite:///{store}"]
    assert main([*WORDS, "cluster=kuberay", IMAGE, *places]) == 1
    (path,) = tmp_path.glob("*/record.json")
    assert load(path).status == "preempted"


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


def test_a_goal_that_was_reached_before_the_node_went_is_reached_and_not_measured_again(
    cluster: FakeCluster, run: Any, log: Log, follower: Time
) -> None:
    """However fast the clock runs: the log is asked for anew before a run is given up."""
    follower.rate = follow.LOST_S
    jobs: list[Any] = []

    def script(cluster: FakeCluster, job: Any) -> None:
        jobs.append(job)
        kept = [event for event in log if event["key"] in ("run_configuration", "validation")]
        cluster.say(starts(cluster, job), *messages(kept))
        cluster.pod(job, "worker", 0, **DISRUPTED)

    cluster.script = script
    record = run(settings=SubmitSettings(retries=1))
    assert (record.status, record.time_to_accuracy, len(jobs)) == ("goal_reached", 12.0, 1)
    assert "does not answer" in record.caveats[0]


def complete_run(cluster: FakeCluster, run: Any, log: Log) -> str:
    """Let a detached run end; return the name of its RayJob."""
    over: list[str] = []

    def script(cluster: FakeCluster, job: Any) -> None:
        finishes(log)(cluster, job)
        over.append(job["metadata"]["name"])

    cluster.script = script
    run(settings=SubmitSettings(detach=True))
    until(lambda: over)
    return over[0]


def test_a_complete_run_whose_log_is_gone_or_cut_is_kept(cluster: FakeCluster, run: Any, log: Log) -> None:
    name = complete_run(cluster, run, log)
    pod, attach = f"{name}-submitter-0", SubmitSettings(attach=name)
    lines = cluster.printed(pod)
    for rest, sentence in ((lines[:6], "the end of its submitter's log"), (lines[6:], "events are missing")):
        cluster._lines[pod] = rest
        with pytest.raises(UserError, match=sentence) as refused:
            run(settings=attach)
        until(written)  # the folder is its process's, and here all are one
    assert f"attach={name}" in refused.value.hint and cluster.names("rayjobs") == [name]
    cluster._lines[pod] = lines
    assert run(settings=attach).status == "goal_reached"


def test_another_ctrl_c_while_the_rest_is_read_deletes_no_run(
    cluster: FakeCluster, run: Any, log: Log, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    cluster.script = lambda cluster, job: cluster.say(starts(cluster, job), *messages(log))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(remote_run, "_show", interrupt)
        run()
    (name,) = cluster.names("rayjobs")
    assert f"cluster=kuberay attach={name}" in capsys.readouterr().err
    cluster.say(f"{name}-submitter-0", {"end": len(log)})
    assert run(settings=SubmitSettings(attach=name)).status == "goal_reached"


def test_ctrl_c_deletes_no_run_that_has_ended(
    cluster: FakeCluster, run: Any, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is pressed at the first event; the rest of the log is there, and was not read."""
    show = remote_run._show

    def pressed(message: Any, view: Any) -> None:
        if "event" in message:
            monkeypatch.setattr(remote_run, "_show", show)
            raise KeyboardInterrupt
        show(message, view)

    cluster.script = finishes(log)
    monkeypatch.setattr(remote_run, "_show", pressed)
    with pytest.raises(UserError, match="it has ended"):
        run()
    (name,) = cluster.names("rayjobs")
    assert run(settings=SubmitSettings(attach=name)).status == "goal_reached"


def test_a_run_that_another_command_follows_is_left_to_it(
    cluster: FakeCluster, run: Any, log: Log, tmp_path: Path
) -> None:
    folder = tmp_path / log[0]["value"]["run_id"]
    folder.mkdir()
    descriptor = uploader.lock(folder)
    cluster.script = finishes(log)
    try:
        with pytest.raises(UserError, match="another command follows") as refused:
            run()
    finally:
        os.close(descriptor)
    (name,) = cluster.names("rayjobs")
    assert f"attach={name}" in refused.value.hint
    cluster.remove("rayjobs", name)


@pytest.mark.parametrize(
    ("change", "sentence", "hint"),
    [
        ("none", "need 9 node(s) with cpu=3, memory=11Gi; of 3 node(s) 2 have", "fewer workers"),
        ("labels", "of 1 node(s) 0 have the labels mlbench/role=worker", "kubectl label"),
        (
            "small",
            "0 of these are large enough, and the most that one allocates is cpu=2",
            "hardware profile",
        ),
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
    if change == "labels":
        cluster.remove("nodes", "worker-0")
        cluster.remove("nodes", "worker-1")
    elif change == "small":
        for number in range(2):
            cluster.node(f"worker-{number}", "worker", cpu="2000m")
    elif change == "quota":
        status: Any = {"hard": {"requests.cpu": "12", "pods": "20"}, "used": {"requests.cpu": "2"}}
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
    with pytest.raises(UserError, match="submitted: .*'entryPoint'") as refused:
        run()
    assert "--cfg manifest" in refused.value.hint
    with pytest.raises(UserError, match="'entryPoint' was unexpected"):
        check(experiment)
    posts = [request for request in cluster.requests if request.startswith("POST") and "rayjobs" in request]
    assert len(posts) == 3 and all("dryRun=All" in request for request in posts)


def test_bookmarks_keep_the_version_of_a_watch_young_in_which_nothing_happens(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "WATCH_S", 1)
    seen = api.Kubernetes(None).watch(path("v1", "Pod", cluster.namespace))
    assert next(seen) == {}
    metadata = {"name": "other"}
    cluster.put("services", {"kind": "Service", "metadata": metadata})
    latest = cluster.item("services", "other")["metadata"]["resourceVersion"]

    def watches() -> list[str]:
        return [request for request in cluster.requests if "watch=" in request]

    def put() -> None:
        until(lambda: len(watches()) == 2)
        cluster.put("pods", {"kind": "Pod", "metadata": metadata})

    threading.Thread(target=put, daemon=True).start()
    change = next(seen)
    assert isinstance(change, dict) and [*change] == ["other"]
    assert f"resourceVersion={latest}" in watches()[1]
    assert len(cluster.requests) == 1 + len(watches())
    cluster.remove("pods", "other")


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
        status = {"hard": {"pods": "4"}, "used": {"pods": "3"}}  # what the first run has left there
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
    with pytest.raises(UserError, match="the context nowhere"):
        api.Kubernetes("nowhere")

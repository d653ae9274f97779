"""A run that has finished is never lost: whatever comes late, in another order, or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import FakeCluster
from test_submission import (
    DISRUPTED,
    Log,
    Time,
    copied,
    finishes,
    messages,
    only_fake,
    starts,
    until,
)
from test_submission import cluster as cluster  # fixtures
from test_submission import follower as follower
from test_submission import log as log
from test_submission import run as run

from mlbench.config.errors import UserError
from mlbench.launch import remote_run
from mlbench.launch.remote_run import SubmitSettings
from mlbench.record import events
from mlbench.record.record import Record
from mlbench.wings.kuberay import follow

pytestmark = pytest.mark.slow

JOB, POD_LIST, LOG_STREAM = r"/rayjobs\?", r"/pods\?", r"/log\?.*follow="


@pytest.fixture
def attach(run: Callable[..., Any]) -> Callable[[str], Record]:
    return lambda name: run(settings=SubmitSettings(attach=name))


def job_requests(cluster: FakeCluster, method: str) -> int:
    """Return how often somebody asked for, or deleted, one RayJob."""
    return sum(request.startswith(f"{method} ") and "/rayjobs/" in request for request in cluster.requests)


def a_verdict(cluster: FakeCluster) -> Callable[[], bool]:
    """Return whether somebody has asked for the RayJob anew, or has given it up, since now."""
    before = job_requests(cluster, "GET")
    return lambda: job_requests(cluster, "GET") > before or job_requests(cluster, "DELETE") > 0


def test_a_goal_that_was_reached_before_the_node_went_is_reached_and_not_measured_again(
    cluster: FakeCluster, run: Any, log: Log, follower: Time
) -> None:
    """However fast the clock runs: the log is asked for anew before a run is given up."""
    follower.rate = follow.LOST_S
    jobs: list[Any] = []

    def script(cluster: FakeCluster, job: Any) -> None:
        jobs.append(job)
        cluster.say(
            starts(cluster, job),
            *messages([e for e in log if e["key"] in ("run_configuration", "validation")]),
        )
        cluster.pod(job, "worker", 0, **DISRUPTED)

    cluster.script = script
    record = run(settings=SubmitSettings(retries=1))
    assert (record.status, record.time_to_accuracy, len(jobs)) == ("goal_reached", 12.0, 1)
    assert "its node does not answer any more" in record.caveats[0]


@only_fake
def test_a_pod_that_is_lost_before_the_log_came_is_no_verdict(
    cluster: FakeCluster, run: Any, log: Log, follower: Time
) -> None:
    """However fast the clock runs: the log is held until the follower asks, or gives up."""
    follower.step = follow.GRACE_S

    def script(cluster: FakeCluster, job: Any) -> None:
        cluster.hold("/log", a_verdict(cluster))
        cluster.say(starts(cluster, job), *messages(log), {"end": len(log)})
        cluster.pod(job, "worker", 1, **DISRUPTED)

    cluster.script = script
    record = run()
    assert record.status == "goal_reached" and len(record.validations) == 3


@only_fake
def test_pods_that_are_gone_are_no_verdict_while_job_and_log_are_silent(
    cluster: FakeCluster, run: Any, log: Log, follower: Time, tmp_path: Path
) -> None:
    """As after a laptop's sleep: the run has ended, its pods are deleted, and other connections hang."""

    def script(cluster: FakeCluster, job: Any) -> None:
        submitter = starts(cluster, job)
        cluster.say(submitter, *messages(log)[:2])
        until(lambda: len(copied(tmp_path)) == 2)
        for pattern in (JOB, LOG_STREAM):
            cluster.hold(pattern, lambda: job_requests(cluster, "DELETE") > 0)
        cluster.say(submitter, *messages(log)[2:], {"end": len(log)})
        cluster.status(job, "Complete", jobStatus="SUCCEEDED")
        follower.step = follow.GRACE_S
        for pod in ("head-0", "worker-0", "worker-1"):
            cluster.remove("pods", f"{job['metadata']['name']}-{pod}")

    cluster.script = script
    record = run()
    assert (record.status, record.submission.preempted) == ("goal_reached", None)
    assert len(record.validations) == 3


@only_fake
@pytest.mark.parametrize(
    "late", [(JOB,), (POD_LIST,), (LOG_STREAM,), (JOB, LOG_STREAM), (JOB, POD_LIST, LOG_STREAM)]
)
def test_a_complete_run_is_collected_in_whatever_order_job_pods_and_log_come(
    cluster: FakeCluster, run: Any, attach: Any, log: Log, follower: Time, late: tuple[str, ...]
) -> None:
    """Its node was taken after its end, and what is late is held until the follower asks, or gives up."""
    (name,) = complete_run(cluster, run, log)
    cluster.pod(cluster.item("rayjobs", name), "worker", 1, **DISRUPTED)
    follower.step = follow.GRACE_S
    before = job_requests(cluster, "GET") + 1  # that of attach=
    for pattern in late:
        cluster.hold(
            pattern, lambda: job_requests(cluster, "GET") > before or job_requests(cluster, "DELETE") > 0
        )
    record = attach(name)
    assert record.status == "goal_reached" and len(record.validations) == 3


def complete_run(cluster: FakeCluster, run: Any, log: Log) -> list[str]:
    """Let a detached run end; return the names of the RayJobs."""
    over: list[str] = []

    def script(cluster: FakeCluster, job: Any) -> None:
        finishes(log)(cluster, job)
        over.append(job["metadata"]["name"])

    cluster.script = script
    run(settings=SubmitSettings(detach=True))
    until(lambda: over)
    return over


@only_fake
def test_a_complete_run_whose_log_cannot_be_read_is_kept(
    cluster: FakeCluster, run: Any, attach: Any, log: Log, follower: Time
) -> None:
    (name,) = complete_run(cluster, run, log)
    follower.step = follow.OUTAGE_S / 10
    cluster.fail("GET", "/log", *[500] * 2000)
    with pytest.raises(UserError, match="a fault of the tests, for 900 s; the run is left alone") as refused:
        attach(name)
    assert f"attach={name}" in refused.value.hint and cluster.names("rayjobs") == [name]
    cluster._faults.clear()
    assert attach(name).status == "goal_reached"


@only_fake
def test_a_complete_run_whose_log_is_gone_or_cut_is_kept(
    cluster: FakeCluster, run: Any, attach: Any, log: Log
) -> None:
    (name,) = complete_run(cluster, run, log)
    pod = f"{name}-submitter-0"
    lines = cluster.printed(pod)
    for rest, sentence in ((lines[:6], "the end of its submitter's log"), (lines[6:], "events are missing")):
        cluster._lines[pod] = rest
        with pytest.raises(UserError, match=sentence):
            attach(name)
    cluster.remove("pods", pod)
    with pytest.raises(UserError, match="the end of its submitter's log"):
        attach(name)
    assert cluster.names("rayjobs") == [name]
    cluster.remove("rayjobs", name)


@only_fake
def test_the_log_of_a_rayjob_that_somebody_deletes_is_read_to_its_end(
    cluster: FakeCluster, run: Any, log: Log
) -> None:
    def script(cluster: FakeCluster, job: Any) -> None:
        submitter = starts(cluster, job)
        current = cluster.item("rayjobs", job["metadata"]["name"])
        cluster.hold("/log", a_verdict(cluster))
        cluster.say(submitter, *messages(log), {"end": len(log)})
        deleted = current["metadata"] | {"deletionTimestamp": "2026-11-22T07:00:00Z"}
        cluster.put("rayjobs", current | {"metadata": deleted})  # until its pods are gone

    cluster.script = script
    assert run().status == "goal_reached"


@only_fake
def test_two_runs_of_one_rayjob_are_never_one_log(
    cluster: FakeCluster, run: Any, log: Log, tmp_path: Path
) -> None:
    def script(cluster: FakeCluster, job: Any) -> None:
        cluster.say(starts(cluster, job), *messages(log)[:2])
        until(lambda: len(copied(tmp_path)) == 2)
        again = [event | {"time_ms": event["time_ms"] + 1} for event in log]
        submitter = cluster.pod(job, "submitter", 1)
        cluster.say(submitter, *messages(again), {"end": len(log)})
        cluster.close_log(f"{job['metadata']['name']}-submitter-0")

    cluster.script = script
    record = run()
    assert record.status == "failed" and len(record.validations) == 1
    assert "the cluster started the command anew after 2 events" in record.error


@only_fake
@pytest.mark.parametrize(
    ("function", "failure"),
    [
        ((events, "copy"), UserError("cannot write events.jsonl: the disk is full")),
        ((remote_run, "_show"), KeyboardInterrupt()),  # the first, and another while the rest is read
    ],
    ids=["full disk", "Ctrl-C twice"],
)
def test_what_fails_here_deletes_no_run(
    cluster: FakeCluster,
    run: Any,
    attach: Any,
    log: Log,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    function: tuple[Any, str],
    failure: BaseException,
) -> None:
    def fail(*_: Any) -> None:
        raise failure

    cluster.script = lambda cluster, job: cluster.say(starts(cluster, job), *messages(log))
    with monkeypatch.context() as patch, pytest.raises(type(failure)):
        patch.setattr(*function, fail)
        run()
    (name,) = cluster.names("rayjobs")
    assert f"not deleted; python -m mlbench.run cluster=kuberay attach={name}" in capsys.readouterr().err
    cluster.say(f"{name}-submitter-0", {"end": len(log)})
    assert attach(name).status == "goal_reached"


@only_fake
@pytest.mark.parametrize("complete", [True, False])
def test_ctrl_c_deletes_no_run_that_has_ended_and_reads_the_log_of_another_to_its_end(
    cluster: FakeCluster,
    run: Any,
    attach: Any,
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    complete: bool,
) -> None:
    """It is pressed at the first validation; the rest of the log is there, and was not read."""
    take = remote_run._show

    def pressed(message: Any, view: Any) -> None:
        monkeypatch.setattr(remote_run, "_show", take)
        raise KeyboardInterrupt

    def script(cluster: FakeCluster, job: Any) -> None:
        if complete:
            return finishes(log)(cluster, job)
        cluster.say(starts(cluster, job), *messages(log)[:3])

    cluster.script = script
    monkeypatch.setattr(
        remote_run, "_show", lambda message, view: (pressed if "event" in message else take)(message, view)
    )
    if not complete:
        record = run()
        assert record.status == "interrupted" and len(record.validations) == 2
        return
    with pytest.raises(UserError, match="it has ended, and its log was not read to the end"):
        run()
    (name,) = cluster.names("rayjobs")
    assert attach(name).status == "goal_reached"

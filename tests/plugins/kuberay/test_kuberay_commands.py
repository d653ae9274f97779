"""Commands in processes of their own against the fake cluster: detach, attach, Ctrl-C, kill, and real Ray."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_S, until
from conftest import ROOT
from driven import Run as DrivenRun
from fake_cluster import FakeCluster
from syrupy.assertion import SnapshotAssertion
from test_manifest import sent
from test_submission import IMAGE, NODES, WORDS, Log, keeps, messages, nothing_is_left, starts
from test_submission import log as log  # a fixture

from mlbench.record import events
from mlbench.record.reader import load
from mlbench.run import main


class Laptop:
    """Where commands run: a folder, a kubeconfig, and the cluster behind it."""

    def __init__(self, cluster: FakeCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        kubeconfig = str(cluster.kubeconfig(folder))
        self.environment = {**os.environ, "KUBECONFIG": kubeconfig}

    def start(self, *overrides: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "mlbench.run", f"output_root={self.folder}", *overrides],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def validations(self) -> int:
        logs = list(self.folder.glob(f"*/{events.NAME}"))
        return sum(event["key"] == "validation" for log in logs for event in events.read(log))


def laptop(cluster: FakeCluster, folder: Path) -> Laptop:
    for name, role in NODES.items():
        cluster.node(name, role)
    return Laptop(cluster, folder)


@pytest.mark.slow
def test_a_detached_run_survives_the_laptop_and_is_collected_by_another_command(
    tmp_path: Path, log: Log
) -> None:
    submitters: list[str] = []

    def script(cluster: FakeCluster, job: Any) -> None:
        submitters.append(starts(cluster, job))
        cluster.say(submitters[0], *messages(log)[:2])

    with FakeCluster(script) as cluster:
        here = laptop(cluster, tmp_path)
        detached = here.start(*WORDS, "seed=7", "cluster=kuberay", IMAGE, "detach=true")
        output, _ = detached.communicate(timeout=PATIENCE_S)
        (name,) = cluster.names("rayjobs")
        assert detached.returncode == 0 and name in output.splitlines()[0] and f"attach={name}" in output
        killed = here.start("cluster=kuberay", f"attach={name}")
        until(lambda: here.validations() == 1)
        killed.kill()
        killed.communicate()
        assert cluster.names("rayjobs") == [name]
        cluster.say(submitters[0], *messages(log)[2:], {"end": len(log)})
        other = here.start("cluster=kuberay", f"attach={name}")
        output, _ = other.communicate(timeout=PATIENCE_S)
        assert other.returncode == 0 and "GOAL REACHED" in output, output
        (path,) = tmp_path.glob("*/record.json")
        assert len(load(path).validations) == 3 and load(path).status == "goal_reached"
        nothing_is_left(cluster)


@pytest.mark.slow
def test_ctrl_c_deletes_the_run_and_keeps_what_it_measured(tmp_path: Path, log: Log) -> None:
    def script(cluster: FakeCluster, job: Any) -> None:
        cluster.say(starts(cluster, job), *messages(log)[:3])

    with FakeCluster(script) as cluster:
        here = laptop(cluster, tmp_path)
        run = here.start(*WORDS, "seed=7", "cluster=kuberay", IMAGE)
        until(lambda: here.validations() == 2 or run.poll() is not None)
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 130, output
        (path,) = tmp_path.glob("*/record.json")
        assert load(path).status == "interrupted" and len(load(path).validations) == 2
        nothing_is_left(cluster)


@pytest.mark.slow
@pytest.mark.slow
def test_a_sweep_keeps_one_ray_cluster_and_grows_it(kept_ray: dict[str, str], tmp_path: Path) -> None:
    """Only Ray Tune runs a sweep's trials; they are submitted by size, and what they shared is deleted."""
    sizes: list[int] = []
    jobs: list[Any] = []

    def script(cluster: FakeCluster, job: Any) -> None:
        if "mlbench/shared" in job["metadata"]["labels"]:
            return keeps(cluster, job, sizes)
        jobs.append(job)
        words = [word for word in sent(job)[1] if not word.startswith("cluster")]
        overrides = [*words, "cluster=attached"]
        seed = int(job["metadata"]["annotations"]["mlbench/seed"])
        made = DrivenRun(tmp_path / "pods", *overrides, seed=seed, name=f"2026-{len(jobs)}")
        made.validate(99.5)
        made.end("goal_reached")
        submitter = cluster.pod(job, "submitter")
        log = events.read(made.log)
        cluster.say(submitter, *messages(log), {"end": len(log)})
        cluster.status(job, "Complete", jobStatus="SUCCEEDED")

    with FakeCluster(script) as cluster:
        here = laptop(cluster, tmp_path)
        overrides = (
            "task=logreg",
            "workers=2,1",
            "repeats=1",
            "hardware=gcp_n1_standard_4",
            "cluster=kuberay",
        )
        command = [sys.executable, "-m", "mlbench.sweep", *overrides, IMAGE, f"output_root={tmp_path}"]
        environment = here.environment | {"XDG_CACHE_HOME": kept_ray["XDG_CACHE_HOME"]}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert sizes == [1, 2]  # one Ray cluster, which grew
        assert [job["metadata"]["labels"]["mlbench/workers"] for job in jobs] == ["1", "2"]
        selected = {job["spec"]["clusterSelector"]["ray.io/cluster"] for job in jobs}
        assert len(selected) == 1 and not any("rayClusterSpec" in job["spec"] for job in jobs)
        records = [load(path) for path in tmp_path.glob("*/record.json")]
        assert len(records) == 2 and {record.status for record in records} == {"goal_reached"}
        nothing_is_left(cluster)
        assert cluster.names("rayclusters") == []


def test_other_clusters_do_not_take_what_only_kuberay_knows(
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert main(["detach=true"]) == 2
    assert capsys.readouterr().err == snapshot

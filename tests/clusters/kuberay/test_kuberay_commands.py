"""Commands in processes of their own against the fake cluster: detach, attach, Ctrl-C, kill, and real Ray."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import until
from conftest import ROOT
from driven import Run as DrivenRun
from fake_cluster import FakeCluster
from test_submission import IMAGE, NODES, WORDS, Log, keeps, messages, nothing_is_left, starts
from test_submission import log as log  # a fixture

from mlbench.experiment import events
from mlbench.experiment.record import load


class Laptop:
    """Where commands run: a folder, a kubeconfig, and the cluster behind it."""

    def __init__(self, cluster: FakeCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        kubeconfig = str(cluster.kubeconfig(folder))
        self.environment = {**os.environ, "KUBECONFIG": kubeconfig}

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "mlbench.run", f"output_root={self.folder}", *words],
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
        output, _ = detached.communicate(timeout=120)
        (name,) = cluster.names("rayjobs")
        assert detached.returncode == 0 and name in output.splitlines()[0] and f"attach={name}" in output
        killed = here.start("cluster=kuberay", f"attach={name}")
        until(lambda: here.validations() == 1)
        killed.kill()
        killed.communicate()
        assert cluster.names("rayjobs") == [name]
        cluster.say(submitters[0], *messages(log)[2:], {"end": len(log)})
        other = here.start("cluster=kuberay", f"attach={name}")
        output, _ = other.communicate(timeout=120)
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
        output, _ = run.communicate(timeout=120)
        assert run.returncode == 130, output
        (path,) = tmp_path.glob("*/record.json")
        assert load(path).status == "interrupted" and len(load(path).validations) == 2
        nothing_is_left(cluster)


@pytest.mark.ray
@pytest.mark.slow
def test_the_entry_point_of_the_rayjob_trains_on_a_real_ray(
    kept_ray: dict[str, str], data_root: Path, tmp_path: Path
) -> None:
    note = json.loads((Path(kept_ray["XDG_CACHE_HOME"]) / "mlbench" / "ray.json").read_text())

    def script(cluster: FakeCluster, job: Any) -> None:
        """Do what the submitter does on the head; only the paths of the pod are others here."""
        submitter = starts(cluster, job)
        words = shlex.split(job["spec"]["entrypoint"])
        paths = {"data_root": data_root, "output_root": tmp_path / "pod"}
        here = [
            next((f"{n}={p}" for n, p in paths.items() if word.startswith(f"{n}=")), word) for word in words
        ]
        head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        variables = {one["name"]: one["value"] for one in head["env"] if one["name"] != "HOME"}
        with subprocess.Popen(
            [sys.executable if word == "python" else word for word in here],
            cwd=ROOT,
            env=kept_ray | variables | {"RAY_ADDRESS": note["address"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                cluster.print(submitter, line.rstrip("\n"))
        cluster.close_log(submitter)
        ended = ("Complete", "SUCCEEDED") if process.returncode == 0 else ("Failed", "FAILED")
        cluster.status(job, ended[0], jobStatus=ended[1])

    with FakeCluster(script) as cluster:
        here = laptop(cluster, tmp_path)
        words = ("task=logreg", "workers=1", "hardware=gcp_n1_standard_4", "cluster=kuberay", IMAGE, "seed=3")
        run = here.start(*words)
        output, _ = run.communicate(timeout=240)
        assert run.returncode == 0 and "GOAL REACHED" in output, output
        (path,) = tmp_path.glob("*-3/record.json")
        (inside,) = (tmp_path / "pod").glob("*-3/record.json")
        record, original = load(path), load(inside)
        changed = {"submission", "command"}
        assert record.model_dump(exclude=changed) == original.model_dump(exclude=changed)
        assert record.submission is not None and record.time_to_accuracy is not None
        nothing_is_left(cluster)


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_keeps_one_ray_cluster_and_grows_it(kept_ray: dict[str, str], tmp_path: Path) -> None:
    sizes: list[int] = []
    jobs: list[Any] = []

    def script(cluster: FakeCluster, job: Any) -> None:
        if "mlbench/shared" in job["metadata"]["labels"]:
            return keeps(cluster, job, sizes)
        jobs.append(job)
        entry = shlex.split(job["spec"]["entrypoint"])
        words = [word for word in entry[entry.index("mlbench.run") + 1 :] if "_root=" not in word]
        seed = int(job["metadata"]["annotations"]["mlbench/seed"])
        made = DrivenRun(tmp_path / "pods", *words, seed=seed, name=f"2026-{len(jobs)}")
        made.validate(99.5)
        made.end("goal_reached")
        submitter = cluster.pod(job, "submitter")
        log = events.read(made.log)
        cluster.say(submitter, *messages(log), {"end": len(log)})
        cluster.status(job, "Complete", jobStatus="SUCCEEDED")

    with FakeCluster(script) as cluster:
        here = laptop(cluster, tmp_path)
        words = ("task=logreg", "workers=2,1", "repeats=2", "hardware=gcp_n1_standard_4", "cluster=kuberay")
        command = [sys.executable, "-m", "mlbench.sweep", *words, IMAGE, f"output_root={tmp_path}"]
        environment = here.environment | {"XDG_CACHE_HOME": kept_ray["XDG_CACHE_HOME"]}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sizes == [1, 2]  # one Ray cluster, which grew
        assert [job["metadata"]["labels"]["mlbench/workers"] for job in jobs] == ["1", "1", "2", "2"]
        selected = {job["spec"]["clusterSelector"]["ray.io/cluster"] for job in jobs}
        assert len(selected) == 1 and not any("rayClusterSpec" in job["spec"] for job in jobs)
        records = [load(path) for path in tmp_path.glob("*/record.json")]
        assert len(records) == 4 and {one.status for one in records} == {"goal_reached"}
        nothing_is_left(cluster)
        assert cluster.names("rayclusters") == []


def test_other_clusters_do_not_take_what_only_kuberay_knows(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlbench.run", "detach=true"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "cluster=local does not take detach" in done.stderr

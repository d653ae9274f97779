"""Official data in a cluster: claims that fit or do not, the Job that prepares, the copy from a bucket."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from commands import until
from fake_cluster import FakeCluster

from mlbench.config import resolved
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.plugins.kuberay import api, dataset, objects
from mlbench.studies import preview

IMAGE = "cluster.image=ghcr.io/example/mlbench@sha256:" + 64 * "0"
WORDS = (
    *("task=resnet20", "scale=official", "workers=2", "hardware=gcp_n1_standard_4", "cluster=kuberay", IMAGE),
    "cluster.data_claim=datasets",
)
JOB = "mlbench-data-cifar10-714284"  # the data set, and by a hash where it goes


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(api, "PAUSE_S", (0.05, 0.2))
    monkeypatch.setattr(objects, "POLL_S", 0.05)
    with FakeCluster() as fake:
        fake.put("namespaces", {"metadata": {"name": "mlbench"}})
        for name, role in (("head-0", "system"), ("worker-0", "worker"), ("worker-1", "worker")):
            fake.node(name, role)
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig(tmp_path)))
        yield fake


def claim(cluster: FakeCluster, *modes: str) -> None:
    cluster.put("persistentvolumeclaims", {"metadata": {"name": "datasets"}, "spec": {"accessModes": modes}})


def dry_run(tmp_path: Path, *overrides: str) -> str:
    every = (*WORDS, f"data_root={tmp_path / 'nothing'}", f"output_root={tmp_path}", *overrides)
    every += () if any("limit_s" in word for word in overrides) else ("cluster.limit_s=86400",)
    return " ".join(" ".join(preview.run(compose(every), every)).split())


@pytest.mark.slow
def test_a_dry_run_asks_for_the_data_of_the_cluster_and_not_of_this_machine(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no PersistentVolumeClaim datasets"):
        dry_run(tmp_path)
    claim(cluster, "ReadWriteOnce")
    with pytest.raises(UserError, match="ReadWriteOnce: .* has 2"):
        dry_run(tmp_path)
    assert "the claim datasets" in dry_run(tmp_path, "workers=1")
    for mode in dataset.MANY_NODES:
        claim(cluster, "ReadWriteOnce", mode)
        assert "the claim datasets" in dry_run(tmp_path)
    cluster.fail("GET", "persistentvolumeclaims", 403)  # whoever may not read claims is not told
    dry_run(tmp_path)
    bucket = ("cluster.data_claim=null", "cluster.data_bucket=gs://lab/mlbench")
    assert "gs://lab/mlbench/cifar10, " in dry_run(tmp_path, *bucket)
    assert not any(request.startswith("POST") and "dryRun" not in request for request in cluster.requests)


def end_job(cluster: FakeCluster, outcome: str, **pod: Any) -> threading.Thread:
    """Let the Job begin, and end in a pod of this status."""

    def play() -> None:
        until(lambda: ("jobs", JOB) in cluster.objects)
        job = cluster.item("jobs", JOB)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"]}
        metadata = {
            "name": "prepare-x",
            "labels": {"job-name": job["metadata"]["name"]},
            "ownerReferences": [owner | {"uid": job["metadata"]["uid"]}],
        }
        cluster.put("pods", {"metadata": metadata, "spec": {"containers": []}, "status": pod})
        cluster.open_log("prepare-x")
        cluster.print("prepare-x", "mlbench: data/cifar10: no space left on the device")
        cluster.close_log("prepare-x")
        cluster.put("jobs", job | {"status": {outcome: 1}})

    thread = threading.Thread(target=play)
    thread.start()
    return thread


@pytest.mark.slow
def test_data_are_prepared_by_a_job_that_goes_when_it_has_ended(cluster: FakeCluster) -> None:
    reported: list[str] = []
    player = end_job(cluster, "succeeded", phase="Succeeded")
    dataset.prepare(compose(WORDS), WORDS, reported.append)
    player.join()
    assert reported[-1].endswith("claim datasets: prepared")
    assert f"logs -f job/{JOB}" in reported[0]
    assert cluster.names("jobs") == cluster.names("pods") == []

    ended = {"name": "prepare-data", "state": {"terminated": {"exitCode": 2}}}
    player = end_job(cluster, "failed", phase="Failed", containerStatuses=[ended])
    with pytest.raises(UserError, match="no space left"):
        dataset.prepare(compose(WORDS), WORDS, reported.append)
    player.join()
    assert cluster.names("jobs") == []


def test_the_job_of_one_place_is_not_taken_for_another_s() -> None:
    """One that was left to itself has filled its own claim alone, and is kept for an hour."""
    bucket = "cluster.data_bucket=gs://lab/mlbench"
    places = [(*WORDS[:-1], place) for place in (WORDS[-1], "cluster.data_claim=other", bucket)]
    names = [dataset.job(compose(words), words)["metadata"]["name"] for words in places]
    assert names[0] == JOB and len({*names}) == 3
    more = tuple(word.replace("workers=2", "workers=4") for word in WORDS)  # it fills the same place
    assert dataset.job(compose(more), more)["metadata"]["name"] == JOB


def test_the_job_writes_to_the_claim_what_the_workers_read_from_it(as_stored: Any) -> None:
    spec = dataset.job(compose(WORDS), (*WORDS, "output_root=/home/me"))["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    env, assignment, *command = container["command"]
    assert (env, command) == ("env", ["python", "-m", "mlbench.data", "prepare"])
    inside, words = resolved.loads(base64.b64decode(assignment.partition("=")[2]).decode())
    assert inside.data_root == Path("/data") and inside.task == compose(WORDS).task
    assert not any("/home/me" in word for word in words)
    assert spec["volumes"][-1] == {"name": "data", "persistentVolumeClaim": {"claimName": "datasets"}}
    assert spec["restartPolicy"] == "Never"
    with pytest.raises(UserError, check=as_stored):
        dataset.job(compose(("task=allreduce", *WORDS[2:])), ())


@pytest.mark.slow
def test_a_bucket_gets_what_was_prepared_and_each_node_a_copy_of_it(tmp_path: Path) -> None:
    """The commands of the manifests, run against an S3 on loopback (moto)."""
    moto = pytest.importorskip("aws_api", reason="needs moto; no bucket was tested").Aws()
    try:
        moto.client("s3").create_bucket(Bucket="lab-data")
        overrides = (*WORDS[:-1], "cluster.data_bucket=s3://lab-data/mlbench")
        experiment = compose(overrides)
        job = dataset.job(experiment, overrides)["spec"]["template"]["spec"]
        assert [container["name"] for container in job["initContainers"]] == ["prepare-data"]
        prepared = tmp_path / "job" / "cifar10"
        prepared.mkdir(parents=True)  # flat, as data.prepare makes it
        (prepared / "manifest.json").write_text(json.dumps({"rows": 3}))
        (prepared / "train.arrow").write_bytes(bytes(range(256)) * 4096)
        copy(job["containers"][0], tmp_path / "job", moto)
        run = objects_of_worker(experiment)
        (tmp_path / "node").mkdir()
        copy(run["initContainers"][0], tmp_path / "node", moto)
    finally:
        moto.close()
    assert files(tmp_path / "node" / "cifar10") == files(prepared) and len(files(prepared)) == 2


def objects_of_worker(experiment: Any) -> Any:
    from mlbench.plugins.kuberay import pods

    return pods.workers(experiment, "run")["spec"]


def copy(container: Any, data: Path, moto: Any) -> None:
    """Run a container's command with `data` in the place of /data."""
    _, *arguments = container["command"]
    arguments = [
        word.replace("/data/", f"{data}/") if word.startswith("/data/") else word for word in arguments
    ]
    environment = {**os.environ, **moto.environment(), "AWS_REGION": "us-east-1"}
    subprocess.run([sys.executable, *arguments], env=environment, check=True)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "modes", "sentence"),
    [
        (("cluster.mounts={/raid: datasets}",), ("ReadOnlyMany",), "is ReadOnlyMany: one node .* run has 2"),
        (("max_failures=1", "cluster.results_claim=datasets"), ("ReadWriteOnce",), "the run has 3"),
        (("cluster.results_claim=datasets",), ("ReadWriteOnce",), None),  # the head's alone
    ],
)
def test_claims_that_several_pods_write_to_have_to_let_them(
    cluster: FakeCluster, words: tuple[str, ...], modes: tuple[str, ...], sentence: str | None
) -> None:
    claim(cluster, *modes)
    experiment = compose(["task=logreg", *WORDS[2:6], *words])
    with pytest.raises(UserError, match=sentence) if sentence else nullcontext():
        dataset.require_claims(api.Kubernetes(None), experiment)

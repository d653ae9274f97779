"""Runs on a real Kubernetes with a real KubeRay operator, whose pods are run by real_kubelet.py."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import real_server
from commands import PATIENCE_S
from conftest import ROOT
from real_kubelet import Kubelets
from real_server import Server
from test_manifest import CPU, OPERATOR, change, job, objects

from mlbench.plugins.kuberay.api import Kubernetes, path
from mlbench.record import events
from mlbench.record.reader import load

NEEDED = ("etcd", "kube-apiserver", real_server.CONTROLLERS, "kube-scheduler", "kuberay-operator")
LEFT = ("v1 Pod", "v1 Secret", "batch/v1 Job", "ray.io/v1 RayJob", "ray.io/v1 RayCluster")
LEFT += ("v1 Service", "networking.k8s.io/v1 NetworkPolicy")
LONG = ["division=open", "task.lr=0.0001", "task.epochs=1000"]  # which misses its goal in its 60 s
RUN = [*CPU, "hardware.cpus=1", "cluster.head_cpus=1"]
NODES = {"head-0": "system", "worker-0": "worker", "worker-1": "worker"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if lacking := real_server.missing(*NEEDED):
        pytest.skip(f"a real operator needs {', '.join(lacking)} in the folder {real_server.ASSETS}")
    if os.geteuid() != 0:
        pytest.skip("root makes the networks and the roots of containers")
    with real_server.server(tmp_path_factory.mktemp("server"), *NEEDED[3:]) as server:
        yield server


def namespace(api: Kubernetes, name: str, overrides: tuple[str, ...] = CPU) -> None:
    """Create a namespace with what runs share there."""
    for item in objects((*overrides, f"cluster.namespace={name}")):
        if item["kind"] not in ("RayJob", "NetworkPolicy"):
            api.create(item)


def test_the_operator_refuses_what_our_rules_refuse_and_takes_the_rest(server: Server) -> None:
    api, space = server.client(), "mlbench-rules"
    namespace(api, space)
    sound = job((*CPU, f"cluster.namespace={space}"))
    api.create(sound)
    sentences: dict[str, str] = {}
    for number, (field, value, sentence) in enumerate(OPERATOR):
        broken = job((*CPU, f"cluster.namespace={space}"))
        if field != "metadata.name":
            broken["metadata"]["name"] = f"mlb-{number}"
        api.create(change(broken, field, value))
        sentences[broken["metadata"]["name"]] = sentence
    statuses: dict[str, Any] = {}

    def decided() -> bool:
        for item in api.get(path("ray.io/v1", "RayJob", space))["items"]:
            statuses[item["metadata"]["name"]] = item.get("status", {})
        return all(status.get("jobDeploymentStatus") for status in statuses.values())

    until(decided)
    for name, status in statuses.items():
        print(name, sentences.get(name), "|", status.get("jobDeploymentStatus"), status.get("message"))
    refused = {
        name for name, status in statuses.items() if status["jobDeploymentStatus"] == "ValidationFailed"
    }
    for name in statuses:
        api.delete(path("ray.io/v1", "RayJob", space, name))
    until(lambda: left(api, space) == [])
    assert refused == sentences.keys() and len(statuses) == len(sentences) + 1


@contextmanager
def nodes(server: Server, folder: Path) -> Iterator[Kubelets]:
    """Yield the kubelets of a node for the head and two for workers."""
    with Kubelets(server.client(), folder / "pods", certificate=server.folder) as kubelets:
        for name, role in NODES.items():
            kubelets.node(name, role)
        yield kubelets


def start(folder: Path, kubeconfig: Path, space: str, *overrides: str) -> "subprocess.Popen[bytes]":
    """Start a command that submits a run; what it prints goes to a file."""
    overrides = (*RUN, f"cluster.namespace={space}", f"output_root={folder}", "seed=3", *overrides)
    with open(folder / "output", "w") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "mlbench.run", *overrides],
            cwd=ROOT,
            env=os.environ | {"KUBECONFIG": str(kubeconfig)},
            stdout=file,
            stderr=file,
        )


@pytest.mark.slow
def test_a_run_goes_from_submission_to_record_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    """As a service account with the submitters' Role, on pods that really run as they are described."""
    api, space = server.client(), "mlbench-run"
    namespace(api, space)
    with nodes(server, tmp_path) as kubelets:
        run = start(tmp_path, server.account(space, "mlbench-submitter"), space)
        run.wait(timeout=PATIENCE_S)
        output = (tmp_path / "output").read_text()
        assert kubelets.problems == []
        assert run.returncode == 0 and "GOAL REACHED" in output, output
        record = load(next(tmp_path.glob("*-3/record.json")))
        assert record.status == "goal_reached" and record.submission is not None
        placed = [(pod["role"], pod["node"]) for pod in record.submission.pods]
        assert placed[0] == ("head", "head-0")
        assert sorted(placed[1:]) == [("worker", "worker-0"), ("worker", "worker-1")]
        until(lambda: left(api, space) == [])


@pytest.mark.slow
def test_a_node_that_is_taken_makes_the_run_preempted(server: Server, tmp_path: Path) -> None:
    api, space = server.client(), "mlbench-spot"
    with nodes(server, tmp_path) as kubelets:
        run = start(tmp_path, server.kubeconfig, space, *LONG)
        until(lambda: validations(tmp_path) >= 1 or run.poll() is not None, patience=180)
        kubelets.lose("worker-1")
        run.wait(timeout=PATIENCE_S)
        record = load(next(tmp_path.glob("*-3/record.json")))
        output = (tmp_path / "output").read_text()
        assert (record.status, record.time_to_accuracy) == ("preempted", None), output
        until(lambda: left(api, space) == [])


def until(condition: Any, *, patience: float = 60) -> None:
    end = time.monotonic() + patience  # s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.2)


def validations(folder: Path) -> int:
    return sum(
        event["key"] == "validation" for log in folder.glob(f"*/{events.NAME}") for event in events.read(log)
    )


def left(api: Kubernetes, space: str) -> list[str]:
    """Return what runs have left in a namespace."""
    names = []
    for kind in LEFT:
        version, name = kind.split()
        items = api.get(path(version, name, space))["items"]
        names += [f"{name} {item['metadata']['name']}" for item in items]
    return names

"""A KubeRay operator that is played: it makes the pods of a RayJob, which real_kubelet.py runs as processes.

Ray, its job server and the command line that the submitter hands to it are real.
"""

import copy
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_S
from fake_cluster import FakeCluster, reference
from real_kubelet import Kubelets

from mlbench.plugins.kuberay import api

HEALTHY = "until ray health-check --address {0}:6379 >/dev/null 2>&1; do sleep 1; done; "
SUBMIT = HEALTHY + "exec ray job submit --address http://{0}:8265 --entrypoint-num-cpus 0 -- {1}"


@contextmanager
def played(folder: Path, monkeypatch: pytest.MonkeyPatch, *, workers: int) -> Iterator[FakeCluster]:
    """Yield a cluster with a node for the head and one for each worker, whose RayJobs really run."""
    cluster = FakeCluster()
    with cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(folder)))
        with Kubelets(api.Kubernetes(None), folder / "pods") as kubelets:
            kubelets.node("head-0", "system")
            for number in range(workers):
                kubelets.node(f"worker-{number}", "worker")
            cluster.script = lambda _, job: _conclude(cluster, kubelets, job)
            yield cluster
            assert kubelets.problems == []


def _conclude(cluster: FakeCluster, kubelets: Kubelets, job: Any) -> None:
    try:
        _operate(cluster, kubelets, job)
    except AssertionError as error:
        cluster.status(job, "Failed", jobStatus="FAILED", reason="AppFailed", message=str(error)[-2000:])


def _operate(cluster: FakeCluster, kubelets: Kubelets, job: Any) -> None:
    spec, token = job["spec"]["rayClusterSpec"], secrets.token_hex(16)
    cluster.status(job, "Initializing")
    head, group = spec["headGroupSpec"], spec["workerGroupSpecs"][0]
    start = ["ray", "start", "--head", "--block", *_flags(head["rayStartParams"])]
    name = _create(cluster, job, head["template"], "head", 0, start, token)
    address = _running(cluster, kubelets, [name], "Ray runtime started")[0]
    start = ["ray", "start", f"--address={address}:6379", "--block", *_flags(group["rayStartParams"])]
    names = [
        _create(cluster, job, group["template"], "worker", number, start, token)
        for number in range(group["replicas"])
    ]
    _running(cluster, kubelets, names, "Ray runtime started")
    cluster.status(job, "Running", jobStatus="RUNNING")
    command = ["bash", "-c", SUBMIT.format(address, job["spec"]["entrypoint"])]
    submitter = _create(cluster, job, job["spec"]["submitterPodTemplate"], "submitter", 0, command, token)
    cluster.open_log(submitter)
    _running(cluster, kubelets, [submitter], "")
    for chunk in _lines(kubelets, submitter):
        cluster.print(submitter, chunk)
    cluster.close_log(submitter)
    done = kubelets.exit_code(submitter, "ray-job-submitter") == 0
    ended = ("Complete", "SUCCEEDED") if done else ("Failed", "FAILED")
    cluster.status(job, ended[0], jobStatus=ended[1])


def _flags(parameters: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in parameters.items()]


def _create(
    cluster: FakeCluster, job: Any, template: Any, role: str, number: int, command: list[str], token: str
) -> str:
    item = copy.deepcopy(template) | {"apiVersion": "v1", "kind": "Pod"}
    owner, container = job["metadata"]["name"], item["spec"]["containers"][0]
    name = f"{owner}-{role}-{number}"
    more = {"job-name": owner} if role == "submitter" else {"ray.io/node-type": role}
    item["metadata"] |= {"name": name, "namespace": cluster.namespace, "ownerReferences": [reference(job)]}
    item["metadata"]["labels"] |= more
    item["spec"]["nodeName"] = "head-0" if role != "worker" else f"worker-{number}"
    container["command"] = command
    token_env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    container["env"] += [{"name": variable, "value": value} for variable, value in token_env.items()]
    cluster.create("pods", item, dry_run=False)
    return name


def _running(cluster: FakeCluster, kubelets: Kubelets, names: list[str], said: str) -> list[str]:
    """Wait until the pods run and have said something; return their addresses."""
    end = time.monotonic() + PATIENCE_S
    addresses = []
    for name in names:
        while True:
            pod = cluster.item("pods", name)  # KeyError: the run was deleted
            status = pod.get("status", {})
            assert status.get("phase") != "Failed" and not kubelets.problems, _told(kubelets, pod)
            if status.get("phase") == "Running" and said in kubelets.printed(name):
                break
            assert time.monotonic() < end, _told(kubelets, pod)
            time.sleep(0.2)
        addresses.append(status["podIP"])
    return addresses


def _told(kubelets: Kubelets, pod: Any) -> str:
    """Return all that is known of a pod that does not run."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    known = [name, *kubelets.problems, json.dumps(status.get("containerStatuses")), kubelets.printed(name)]
    return "\n".join(known)


def _lines(kubelets: Kubelets, name: str) -> Iterator[str]:
    rest = b""
    for data in kubelets.output(name, "ray-job-submitter", True):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")

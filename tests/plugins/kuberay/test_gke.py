"""The real gcloud against a Google Cloud on loopback: what is created is deleted, whatever is killed when."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import killing_tools
import pytest
from conftest import ROOT
from google_api import Google

from mlbench import clock
from mlbench.config.errors import UserError
from mlbench.plugins.kuberay.provisioning import gke, journal, lifecycle, plan
from mlbench.plugins.kuberay.provisioning.spec import ClusterSpec

GCLOUD, KUBECTL = shutil.which("gcloud"), shutil.which("kubectl")
pytestmark = pytest.mark.skipif(
    not (GCLOUD and KUBECTL), reason="needs gcloud and kubectl; nothing of GKE was tested"
)
HELM = '#!/bin/sh\necho "$*" >> {log}\n'
WORDS = ("project=demo", "workers=8", "hours=4", "max_usd=20", "name=lab")
SETTINGS = {name: "" for name in ("hardware", "spot", "place", "allow", "context")}
SETTINGS |= {word.partition("=")[0]: word.partition("=")[2] for word in WORDS}
STEPS = ("network", "subnet", "router", "NAT gateway", "cluster", "node pool", "kubeconfig")


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """Yield an empty Google Cloud that this process's gcloud talks to; helm only writes down its words."""
    tools = tmp_path / "tools"
    tools.mkdir()
    killing_tools.write(tools, "gcloud", ("create", "get-credentials"))
    (tools / "helm").write_text(HELM.format(log=tmp_path / "helm.log"))
    (tools / "helm").chmod(0o755)
    server = Google()
    for name, value in server.environment(str(tmp_path / "gcloud")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(lifecycle, "RETRY_S", 0.0)
    yield server
    server.close()


def cluster(*arguments: str, kill_at: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlbench.cluster", *arguments],
        cwd=ROOT,
        env={**os.environ, "KILL_AT": kill_at},
        capture_output=True,
        text=True,
    )


def lab(google: Google, **settings: str) -> ClusterSpec:
    """Return a cluster that a killed command has left half made: its journal, and a network."""
    spec = plan.parse("gke", SETTINGS | settings, creating=True)
    journal.begin(spec).append(state="creating")
    note = " ".join(f"{label}={value}" for label, value in spec.labels.items())
    google.resources["networks"]["mlbench-lab"] = {"name": "mlbench-lab", "description": note}
    return spec


@pytest.mark.slow
def test_a_cluster_comes_up_private_with_limits_and_is_reaped_without_a_trace(
    google: Google, tmp_path: Path
) -> None:
    """Its command is killed before it installs KubeRay's operator, which kind has as well."""
    done = cluster("up", "gke", *WORDS, kill_at=f"after {len(STEPS)}")
    assert done.returncode == -9, done.stdout + done.stderr
    bodies: dict[str, Any] = {path.rpartition("/")[2]: body for method, path, body in google.changes}
    made, pool = bodies["clusters"]["cluster"], bodies["nodePools"]["nodePool"]
    spec = journal.load("lab").spec
    assert made["resourceLabels"] == pool["config"]["resourceLabels"] == spec.labels
    assert made["controlPlaneEndpointsConfig"]["ipEndpointsConfig"] == {"enabled": False}
    assert made["networkConfig"]["defaultEnablePrivateNodes"] is True
    assert pool["autoscaling"] == {"enabled": True, "minNodeCount": 0, "maxNodeCount": 8}
    assert pool["config"]["maxRunDuration"] == "14400s" and pool["config"]["spot"] is True
    assert pool["config"]["accelerators"][0]["acceleratorType"] == "nvidia-tesla-t4"
    assert not any("firewall" in path for _, path, _ in google.changes)
    contexts = ["kubectl", "config", "get-contexts", "--output=name"]
    named = subprocess.run(contexts, capture_output=True, text=True).stdout.split()
    assert named == ["gke_demo_us-central1-a_mlbench-lab"]

    shown = cluster("status", "lab")
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:5]] == [
        "cluster", "router", "subnet", "network",
    ]  # fmt: skip
    assert cluster("up", "gke", *WORDS).returncode == 2  # its name is in use
    assert cluster("list").stdout.splitlines()[1].split()[:2] == ["lab", "gke"]

    google.busy = 1  # as while the cloud is still at work on it
    assert lifecycle.reap(print, now=clock.wall()) == ["lab"]
    assert google.left() == [] and google.busy == 0
    assert "gke_demo" not in (tmp_path / "gcloud" / "kubeconfig").read_text()
    assert "lab" not in cluster("list").stdout


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("MLBENCH_TEST_EVERY_KILL"),
    reason="takes minutes; MLBENCH_TEST_EVERY_KILL=1 runs it, docs/clusters.md has what it found",
)
@pytest.mark.parametrize("kill_at", [f"after {number}" for number in range(1, 8)] + ["during 5", "during 6"])
def test_what_a_killed_command_has_made_is_reaped(google: Google, kill_at: str) -> None:
    when, number = kill_at.split()
    done = cluster("up", "gke", *WORDS, kill_at=kill_at)
    assert done.returncode == -9
    before, reported = google.left(), []
    google.busy = 1 if "clusters/mlbench-lab" in before else 0  # as while the cloud is still creating it
    assert lifecycle.reap(reported.append, now=clock.wall()) == ["lab"]
    assert google.left() == [] and google.busy == 0
    kinds = [name.partition("/")[0] for name in before]
    print(f"| {when} {STEPS[int(number) - 1]} | {', '.join(kinds)} | {reported[:-1]} | {google.left()} |")


def pool(google: Google, **settings: str) -> dict[str, Any]:
    """Make a plan's control plane and pool of workers; return the configuration of the pool's nodes."""
    spec = plan.parse("gke", SETTINGS | {"max_usd": "1000"} | settings, creating=True)
    log = journal.begin(spec)
    for step in gke.create(spec)[STEPS.index("cluster") : STEPS.index("kubeconfig")]:
        lifecycle.perform(log, step)
    return google.resources["nodePools"]["workers"]["config"]


@pytest.mark.slow
def test_a_pool_of_h100_gets_a_disk_that_its_machines_take(google: Google) -> None:
    config = pool(google, hardware="gcp_a3_highgpu_8g", spot="false")
    assert (config["machineType"], config["diskType"]) == ("a3-highgpu-8g", "pd-balanced")
    (gpu,) = config["accelerators"]
    assert gpu["gpuDriverInstallationConfig"] == {"gpuDriverVersion": "LATEST"}
    (system,) = google.resources["clusters"]["mlbench-lab"]["nodePools"]
    assert system["config"]["diskType"] == "pd-balanced"


@pytest.mark.slow
def test_workers_without_gpus_have_their_nodes_for_themselves_once_gke_takes_their_pool(
    google: Google,
) -> None:
    google.busy = 1  # it may resize the control plane of a cluster that has just been created
    (taint,) = pool(google, hardware="gcp_n1_standard_4")["taints"]
    assert (taint["key"], taint["value"], taint["effect"]) == ("mlbench/role", "worker", "NO_SCHEDULE")
    assert google.busy == 0


@pytest.mark.slow
def test_what_carries_another_id_is_not_deleted(google: Google) -> None:
    lab(google)
    google.resources["networks"]["mlbench-lab"]["description"] = "mlbench-id=somebody-elses"
    with pytest.raises(UserError, match="carry the id"):
        lifecycle.down("lab", print)
    assert google.left() == ["networks/mlbench-lab"]
    assert not any(method == "DELETE" for method, _, _ in google.changes)

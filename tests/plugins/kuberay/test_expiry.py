"""A cluster of `mlbench.cluster up` takes no run after its expiry."""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_cluster import FakeCluster
from syrupy.assertion import SnapshotAssertion

from mlbench import clock
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.launch.remote_run import SubmitSettings
from mlbench.plugins import kuberay
from mlbench.plugins.kuberay.provisioning import journal, lifecycle, plan
from mlbench.plugins.kuberay.submission import LEVEL

SETTINGS = {name: "" for name in ("hardware", "spot", "place", "allow", "context")} | {
    "project": "demo", "workers": "8", "hours": "4", "max_usd": "20", "name": "lab",
}  # fmt: skip
IMAGE = "cluster.image=ghcr.io/example/mlbench@sha256:" + 64 * "0"
AWS = {"name": "eks", "allow": "192.0.2.1/32", "spot": "false"}
CONTEXT = "gke_demo_us-central1-a_mlbench-lab"


@pytest.mark.parametrize("overrides", [(), (f"cluster.context={CONTEXT}",)])
def test_an_expired_cluster_is_refused_under_its_context_alone(
    overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    spec = plan.parse("gke", SETTINGS, creating=True)
    journal.begin(spec.model_copy(update={"created": clock.wall() - 5 * 3600})).append(state="up")
    with FakeCluster() as cluster:
        kubeconfig = cluster.kubeconfig(tmp_path)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        experiment = compose(["cluster=kuberay", "hardware=gcp_n1_standard_4", IMAGE, *overrides])
        if not overrides:
            assert kuberay.expires(experiment) is None  # the current context is another cluster's
        values = yaml.safe_load(kubeconfig.read_text())
        values["contexts"].append({**values["contexts"][0], "name": CONTEXT})
        kubeconfig.write_text(yaml.safe_dump(values | ({} if overrides else {"current-context": CONTEXT})))
        assert kuberay.expires(experiment) == pytest.approx(clock.wall() - 3600, abs=60)
        with pytest.raises(UserError, match="lab expired 1 h 00 min"):
            kuberay.check(experiment)
        assert cluster.requests == []


def test_an_official_run_that_outlasts_its_cluster_or_its_disks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = ["task=resnet50", "scale=official", "backend=nccl", "hardware=gcp_n1_t4", "workers=8"]
    words += ["cluster=kuberay", f"cluster.context={CONTEXT}", IMAGE, "cluster.data_bucket=gs://a/b"]
    for hours, disk, limit, sentence in (
        ("4", "", 50000, "expires in 4 h 00 min, the run may take 13 h 53 min"),
        ("20", "", 50000, "100 GB of disk: too little for 142 GiB"),
        ("20", "300", 50000, "KubeRay is not installed"),
    ):
        spec = plan.parse(
            "gke", SETTINGS | {"hours": hours, "max_usd": "200", "disk_gb": disk}, creating=True
        )
        shutil.rmtree(journal.root(), ignore_errors=True)
        journal.begin(spec).append(state="up")
        with FakeCluster() as cluster:
            cluster.installed = False
            kubeconfig = cluster.kubeconfig(tmp_path)
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
            values = yaml.safe_load(kubeconfig.read_text())
            values["contexts"].append({**values["contexts"][0], "name": CONTEXT})
            kubeconfig.write_text(yaml.safe_dump(values))
            with pytest.raises(UserError, match=sentence):
                kuberay.check(compose([*words, f"cluster.limit_s={limit}"]))


def test_the_end_of_a_run_names_what_still_costs_or_deletes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion, as_stored: Any
) -> None:
    """GKE's workers go by themselves, EKS's stay: head, control plane, disk and NAT gateway, or all of it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    words = ["cluster=kuberay", "hardware=gcp_n1_standard_4", IMAGE]
    assert kuberay.remains(compose([*words, "cluster.context=other"])) is None
    with pytest.raises(UserError, check=as_stored):
        kuberay.down(compose([*words, "cluster.context=other"]), print)
    journal.begin(plan.parse("gke", SETTINGS, creating=True)).append(state="up")
    journal.begin(plan.parse("aws", SETTINGS | AWS, creating=True)).append(state="up")
    gke = kuberay.remains(compose([*words, f"cluster.context={CONTEXT}"]))
    assert gke == snapshot  # 0.19 + 0.10 + 100 GB x 0.10 USD a month + 0.0064
    aws = kuberay.remains(compose([*words, "cluster.context=mlbench-eks"]))
    assert aws is not None and "eks" in aws and "4.65 USD" in aws
    deleted: list[str] = []
    monkeypatch.setattr(lifecycle, "down", lambda name, report: deleted.append(name))
    kuberay.down(compose([*words, f"cluster.context={CONTEXT}"]), print)
    assert deleted == ["lab"]


def test_words_that_do_not_go_with_down_after_are_refused(as_stored: Any) -> None:
    settings = {"detach": "false", "attach": "", "retries": "1", "down_after": "run"}
    assert SubmitSettings.parse(settings).down_after == "run"
    with pytest.raises(UserError, check=as_stored):
        SubmitSettings.parse(settings | {"detach": "true", "retries": "0"})
    with pytest.raises(UserError, match="must be 'run'"):
        SubmitSettings.parse(settings | {"down_after": "sweep"})


def test_a_user_with_ipc_lock_needs_a_namespace_that_admits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["cluster=kuberay", "hardware=gcp_n1_standard_4", IMAGE, "cluster.ipc_lock=true"]
    with FakeCluster() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        for labels, refused in (({LEVEL: "restricted"}, True), ({LEVEL: "privileged"}, False), ({}, False)):
            cluster.put(
                "namespaces", {"kind": "Namespace", "metadata": {"name": "mlbench", "labels": labels}}
            )
            with pytest.raises(UserError, match="Pod Security restricted") if refused else nullcontext():
                kuberay.check(compose(words))


def test_a_queue_s_runs_share_no_ray_cluster_that_would_grow_past_its_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kueue counts no pods that are added to a RayCluster which it has admitted."""
    words = ["cluster=kuberay", "hardware=gcp_n1_standard_4", IMAGE, "cluster.shared=mlb-sweep", "seed=1"]
    with FakeCluster() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path)))
        experiment = compose([*words, "cluster.queue=team"])
        submission = kuberay.submit(experiment, words, seed=1)
        (job,) = (cluster.item("rayjobs", name) for name in cluster.names("rayjobs"))
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        assert "rayClusterSpec" in job["spec"] and "clusterSelector" not in job["spec"]
        submission.delete()

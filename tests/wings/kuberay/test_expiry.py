"""A cluster of `mlbench.cluster up` takes no run after its expiry."""

from pathlib import Path

import pytest
import yaml
from fake_cluster import FakeCluster

from mlbench import clock
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.wings import kuberay
from mlbench.wings.kuberay.provisioning import journal, plan

SETTINGS = {name: "" for name in ("hardware", "spot", "place", "allow", "context")} | {
    "project": "demo", "workers": "8", "hours": "4", "max_usd": "20", "name": "lab",
}  # fmt: skip
IMAGE = "cluster.image=ghcr.io/example/mlbench@sha256:" + 64 * "0"
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
        with pytest.raises(UserError, match="the cluster lab expired 1 h 00 min ago"):
            kuberay.check(experiment)
        assert cluster.requests == []

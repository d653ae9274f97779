"""What a cluster would be and cost, without a cloud, its tools or credentials."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from mlbench.config.compose import compose, hardware
from mlbench.config.errors import UserError
from mlbench.record.overhead import hourly
from mlbench.wings.kuberay.provisioning import aws, plan

IDLE = {"ray", "torch", "mlflow", "kubernetes", "numpy", "scipy", "pyarrow", "psutil", "rich"}
EMPTY = {name: "" for name in ("hardware", "spot", "hours", "max_usd", "name", "project", "place")} | {
    "workers": "8", "allow": "192.0.2.1/32", "context": ""
}  # fmt: skip


def parse(provider: str, *, creating: bool = False, **settings: str):
    return plan.parse(provider, EMPTY | settings, creating=creating)


def test_eight_t4_workers_cost_what_a_pencil_says(tmp_path) -> None:
    """The command prints it with no tool on the PATH, and imports nothing that it does not need."""
    code = "import sys; from mlbench.cluster import main; code = main(sys.argv[1:]);"
    code += f"print({IDLE} & sys.modules.keys()); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "gke", "workers=8"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("set()\n")
    workers, nat = 8 * (0.0522 + 0.175), 0.005 + 9 * 0.0014
    hour = workers + 0.19 + 0.10 + 9 * 100 * 0.04 / 730 + nat
    assert f"price an hour: {hour:.2f} USD with 8 worker nodes" in done.stdout
    assert "--max-nodes=8" in done.stdout and "--max-run-duration=14400s" in done.stdout
    assert not list(tmp_path.iterdir())  # a plan writes nothing


@pytest.mark.parametrize("spot", [True, False])
def test_every_priced_machine_has_a_whole_price(spot: bool) -> None:
    for name in ("gcp_n1_t4", "aws_p3_2xlarge"):
        hardware = compose([f"hardware={name}"]).hardware
        parts = hourly(hardware, 3, spot=spot)
        price = hardware.price
        usd = price and (price.usd_per_hour_spot if spot else price.usd_per_hour)
        assert usd is not None and parts["workers"] == 3 * usd
        assert min(parts.values()) > 0 and len(parts) == 5


@pytest.mark.parametrize("provider", ["gke", "aws", "kind", "existing"])
def test_no_command_opens_an_address_or_reads_a_shell(provider: str) -> None:
    spec = parse(provider, context="lab")
    steps = plan.provider(spec).create(spec)
    words = [word for step in steps for word in step.argv]
    assert all(isinstance(word, str) for word in words)
    assert not any("firewall" in word or "0.0.0.0/0" in word or "LoadBalancer" in word for word in words)
    assert steps[-1].unless is not None and "rayjobs.ray.io" in steps[-1].unless


@pytest.mark.parametrize(
    ("provider", "settings", "sentence"),
    [
        ("gce", {}, "not a provider"),
        ("gke", {"hardware": "gcp_n1_t5", "project": "p"}, "hardware=gcp_n1_t5 is unknown.*gcp_n1_t4"),
        ("gke", {"hardware": "aws_m5_xlarge", "project": "p"}, "no machine of gke"),
        ("gke", {"hours": "4", "max_usd": "20"}, "the project that pays"),
        ("gke", {"project": "p", "hours": "4"}, "an expiry and a spending cap"),
        ("gke", {"project": "p", "hours": "40", "max_usd": "20"}, "above max_usd=20"),
        ("gke", {"project": "p", "workers": "2.5"}, "from 1 on"),
        ("gke", {"project": "p", "name": "My Cluster"}, "cannot be the name"),
        ("gke", {"hardware": "gcp_g2_standard_4", "project": "p", "hours": "1", "max_usd": "9"}, "no price"),
        ("aws", {"spot": "true", "hours": "1", "max_usd": "9"}, "no spot price"),
        ("aws", {"allow": "", "hours": "1", "max_usd": "9"}, "may reach the cluster's API"),
        ("aws", {"allow": "0.0.0.0/0", "hours": "1", "max_usd": "9"}, "not all of them"),
        ("kind", {"hardware": "gcp_n1_t4"}, "has GPUs"),
        ("existing", {}, "the context"),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_before_anything_is_made(provider, settings, sentence, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("CLOUDSDK_CORE_PROJECT", raising=False)
    with pytest.raises(UserError, match=sentence):
        parse(provider, creating=True, **settings)
    assert not list(tmp_path.iterdir())


def test_a_cap_is_kept_to_the_cent_and_nodes_are_those_that_the_workers_need() -> None:
    words = {"hardware": "aws_g4dn_12xlarge", "hours": "4"}  # four GPUs a node
    most = plan.usd_at_most(parse("aws", creating=False, **words))
    spec = parse("aws", creating=True, max_usd=f"{most + 0.01:.2f}", **words)
    assert aws.variables(spec)["workers"] == 2 and " workers=8 " in plan.run_command(spec)
    with pytest.raises(UserError, match="which is above max_usd"):
        parse("aws", creating=True, max_usd=f"{most - 0.01:.2f}", **words)


def test_a_profile_is_the_one_that_a_run_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of the user's own that takes over another, at the price of the user's price file."""
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "ours.yaml").write_text("defaults: [gcp_n1_t4, _self_]\nname: ours\ncpus: 2\n")
    price = '{usd_per_hour: 0.4, usd_per_hour_spot: null, date: "2026-11-22", source: our contract}'
    (tmp_path / "prices.yaml").write_text(f"ours: {price}\n")
    monkeypatch.setenv("MLBENCH_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("MLBENCH_PRICES", str(tmp_path / "prices.yaml"))
    ours = hardware("ours")
    assert (ours.cpus, ours.price and ours.price.usd_per_hour) == (2, 0.4)
    for name in ("ours", "gcp_n1_t4", "local"):
        assert hardware(name) == compose([f"hardware={name}"]).hardware
    (tmp_path / "hardware" / "wrong.yaml").write_text("defaults: [local, _self_]\nname: wrong\ncpus: many\n")
    with pytest.raises(UserError, match="hardware.cpus=many: not a whole number"):
        hardware("wrong")

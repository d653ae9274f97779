"""What a cluster would be and cost, without a cloud, its tools or credentials."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import device_plugin
import pytest
from conftest import ROOT

from mlbench.config.compose import compose, hardware
from mlbench.config.errors import UserError
from mlbench.config.experiment import Price
from mlbench.plugins.kuberay import rayjob
from mlbench.plugins.kuberay.capacity import quantity
from mlbench.plugins.kuberay.provisioning import aws, gke, plan
from mlbench.record.overhead import hourly

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
    hour = workers + 0.19 + 0.10 + 9 * 100 * 0.10 / 730 + nat
    assert f": {hour:.2f} USD with 8" in done.stdout
    assert "--max-nodes=8" in done.stdout and "--max-run-duration=14400s" in done.stdout
    assert not list(tmp_path.iterdir())  # a plan writes nothing


@pytest.mark.parametrize("spot", [True, False])
def test_every_priced_machine_has_a_whole_price(spot: bool) -> None:
    for name in ("gcp_n1_t4", "aws_p3_2xlarge"):  # the latter only to predict with: no cluster is made of it
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
    arguments = [word for step in steps for word in step.argv]
    assert all(isinstance(word, str) for word in arguments)
    assert not any("firewall" in word or "0.0.0.0/0" in word or "LoadBalancer" in word for word in arguments)
    assert steps[-1].unless is not None and "--for=condition=Available" in steps[-1].unless


@pytest.mark.parametrize(
    ("provider", "settings"),
    [
        ("gce", {}),
        ("gke", {"hardware": "gcp_n1_t5", "project": "p"}),
        ("gke", {"hardware": "aws_m5_xlarge", "project": "p"}),
        ("gke", {"hours": "4", "max_usd": "20"}),
        ("gke", {"hardware": "gcp_n1_v100", "project": "p"}),
        ("aws", {"hardware": "aws_p3_2xlarge"}),
        ("gke", {"hardware": "gcp_a3_highgpu_8g", "workers": "9", "project": "p"}),
        ("aws", {"hardware": "aws_p5_48xlarge", "workers": "16"}),
        ("gke", {"project": "p", "disk_gb": "10"}),
        ("gke", {"project": "p", "hours": "4"}),
        ("gke", {"project": "p", "hours": "40", "max_usd": "20"}),
        ("gke", {"project": "p", "workers": "2.5"}),
        ("gke", {"project": "p", "name": "My Cluster"}),
        ("gke", {"hardware": "gcp_g2_standard_4", "project": "p", "hours": "1", "max_usd": "9"}),
        ("aws", {"spot": "true", "hours": "1", "max_usd": "9"}),
        ("aws", {"allow": "", "hours": "1", "max_usd": "9"}),
        ("aws", {"allow": "0.0.0.0/0", "hours": "1", "max_usd": "9"}),
        ("gke", {"project": "p", "flex_start": "true", "spot": "true"}),
        ("aws", {"flex_start": "true"}),
        ("kind", {"hardware": "gcp_n1_t4"}),
        ("existing", {}),
    ],
)  # fmt: skip
def test_a_mistake_is_refused_before_anything_is_made(
    provider, settings, as_stored: Any, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("CLOUDSDK_CORE_PROJECT", raising=False)
    with pytest.raises(UserError, check=as_stored):
        parse(provider, creating=True, **settings)
    assert not list(tmp_path.iterdir())


def test_a_quantity_is_read_in_every_form_of_kubernetes() -> None:
    texts = ("500m", "2", "15Gi", "12e3", "1E", "250u", "123Mi")
    numbers = (0.5, 2, 15 * 2**30, 12000, 10**18, 0.00025, 123 * 2**20)
    assert tuple(map(quantity, texts)) == pytest.approx(numbers)


def test_a_user_without_a_name_has_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user no file names."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert parse("gke").labels["mlbench-owner"] == "unknown"


def test_a_cap_is_kept_to_the_cent_and_nodes_are_those_that_the_workers_need() -> None:
    settings = {"hardware": "aws_g4dn_12xlarge", "hours": "4"}  # four GPUs a node
    planned = parse("aws", creating=False, **settings)
    most = planned.hours * sum(planned.usd_per_hour().values())
    spec = parse("aws", creating=True, max_usd=f"{most + 0.01:.2f}", **settings)
    assert aws.variables(spec)["workers"] == 2 and " workers=8 " in plan.run_command(spec)
    with pytest.raises(UserError, match="above max_usd"):
        parse("aws", creating=True, max_usd=f"{most - 0.01:.2f}", **settings)


@pytest.mark.parametrize("provider", ["kind", "existing"])
def test_the_printed_command_of_a_run_is_taken_once_its_nodes_are_described(provider: str) -> None:
    command = plan.run_command(parse(provider, context="lab", workers="2"))
    for placeholder, value in (("=CPUS", "=2"), ("=GIB", "=8"), ("DIGEST", 64 * "0")):
        command = command.replace(placeholder, value)
    assert rayjob.worker_pods(compose(shlex.split(command)[3:])) == 2


@pytest.mark.parametrize(
    ("settings", "taint"), [({}, "nvidia.com/gpu"), ({"hardware": "aws_m5_xlarge"}, "mlbench/role")]
)
def test_only_pods_that_tolerate_it_run_beside_what_is_measured_on_aws(settings: dict, taint: str) -> None:
    """NVIDIA's device plugin tolerates the first alone."""
    assert aws.variables(parse("aws", **settings))["worker_taint"]["key"] == taint


@pytest.mark.parametrize(("name", "tainted"), [("gcp_n1_t4", False), ("gcp_n1_standard_4", True)])
def test_only_pods_that_tolerate_it_run_beside_what_is_measured_on_gke(name: str, tainted: bool) -> None:
    """GKE itself taints nodes with GPUs."""
    text = plan.text(parse("gke", hardware=name))
    assert ("--node-taints=mlbench/role=worker:NoSchedule" in text) is tainted


def test_the_device_plug_in_is_scheduled_where_the_plan_puts_gpus() -> None:
    """By the labels that Terraform gets; tests/plugins/kuberay/test_aws.py sees them on the node group."""
    assert device_plugin.scheduled(aws.variables(parse("aws"))["worker_labels"], "nvidia.com/gpu")
    assert not device_plugin.scheduled({"mlbench/role": "worker"}, "nvidia.com/gpu")
    assert aws.variables(parse("aws", hardware="aws_m5_xlarge"))["worker_labels"] == {}


@pytest.mark.parametrize("zone", ["use1-az3", "usw1-az2", "cac1-az3"])
def test_no_subnet_is_put_where_eks_makes_no_cluster(
    zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account may call such a zone us-east-1a, and is then refused once the network stands."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    spec = parse("aws")
    aws.prepare(spec)
    module = next(tmp_path.rglob("main.tf")).read_text()
    zones = re.search(r'data "aws_availability_zones" "up" {[^}]*exclude_zone_ids = (\[.*\])', module)
    assert zones and zone in zones[1]


@pytest.mark.parametrize(
    "answer",
    [
        "Operation operation-1596064640049-1b03e177 is currently upgrading cluster lab. Please wait and try "
        "again once it is done.",
        "Operation operation-1533161820212-e0451fc6 is currently creating a node pool for cluster lab. "
        "Please wait and try again once it is done.",
        "Cluster is running incompatible operation operation-1718024305921-fd4f65ea.",
        "Cluster is currently being created, deleted, updated or repaired and cannot be updated.",
    ],
)
def test_what_gke_answers_while_it_is_busy_is_waited_for(answer: str) -> None:
    """hashicorp/terraform-provider-google 3650, 7638, prometheus/test-infra 84, rancher/gke-operator 509."""
    (step,) = (step for step in gke.create(parse("gke", project="demo")) if step.patience)
    assert any(phrase in answer for phrase in step.patience)


def test_a_larger_disk_costs_more_and_a_disk_without_a_price_is_refused() -> None:
    l4 = hardware("gcp_g2_standard_4")
    price = Price(usd_per_hour=1, usd_per_hour_spot=None, date="2026-11-24", source="a test")
    l4 = l4.model_copy(update={"price": price})
    disks = hourly(l4, 3, spot=False, disk_gb=200)["disks"]
    assert disks == pytest.approx(200 * 4 * 0.10 / 730)  # the head's, too
    assert l4.machine
    machine = l4.machine.model_copy(update={"disk_type": "hyperdisk-balanced"})
    with pytest.raises(UserError, match="disk hyperdisk-balanced"):
        hourly(l4.model_copy(update={"machine": machine}), 3, spot=False)


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
    with pytest.raises(UserError, match="hardware.cpus=many: not"):
        hardware("wrong")


def test_capacity_that_is_reserved_or_waited_for_is_asked_for_by_its_name() -> None:
    def parse(provider: str, **settings: str):
        return plan.parse(provider, EMPTY | settings, creating=False)

    h100 = {"hardware": "gcp_a3_highgpu_8g", "workers": "8", "project": "p", "spot": "false"}
    words = [word for step in gke.create(parse("gke", **h100, flex_start="true")) for word in step.argv]
    assert {"--flex-start", "--location-policy=ANY", "--ephemeral-storage-local-ssd"} <= set(words)
    assert "--spot" not in words and "--enable-image-streaming" in words
    run = plan.run_command(parse("gke", **h100, flex_start="true"))
    assert "cloud.google.com/gke-flex-start" in run
    words = [word for step in gke.create(parse("gke", **h100, reservation="lab")) for word in step.argv]
    assert {"--reservation-affinity=specific", "--reservation=lab"} <= set(words)
    account = "nodes@p.iam.gserviceaccount.com"
    words = [
        word for step in gke.create(parse("gke", project="p", service_account=account)) for word in step.argv
    ]
    assert words.count(f"--service-account={account}") == 2  # of the head's pool and of the workers'
    p5 = {"hardware": "aws_p5_48xlarge", "workers": "8"}
    block = aws.variables(parse("aws", **p5, reservation="block/cr-1"))
    assert (block["capacity_type"], block["reservation"], block["local_ssd"]) == (
        "CAPACITY_BLOCK",
        "cr-1",
        True,
    )
    plain = aws.variables(parse("aws", **p5, reservation="cr-2"))
    assert (plain["capacity_type"], plain["reservation"]) == ("ON_DEMAND", "cr-2")

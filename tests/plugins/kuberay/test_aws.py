"""The real Terraform with AWS's provider, and the real aws command, against an AWS on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import device_plugin
import killing_tools
import pytest
from aws_api import Aws
from conftest import ROOT

from mlbench import clock
from mlbench.plugins.kuberay.provisioning import aws, journal, lifecycle

MISSING = [tool for tool in ("terraform", "aws", "kubectl") if shutil.which(tool) is None]
MIRROR = next(
    (
        Path(folder)
        for folder in (os.environ.get("MLBENCH_TEST_TERRAFORM_PLUGINS", ""), *Path("/opt").glob("*"))
        if folder and (Path(folder) / "registry.terraform.io/hashicorp/aws").is_dir()
    ),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}; nothing of AWS was tested"),
    pytest.mark.skipif(
        MIRROR is None,
        reason="needs Terraform's provider hashicorp/aws below MLBENCH_TEST_TERRAFORM_PLUGINS; nothing of "
        "AWS was tested",
    ),
]
WORDS = ("workers=2", "hours=4", "max_usd=20", "name=lab", "allow=192.0.2.7/32")


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    """Yield an AWS; every test leaves in it what was there before."""
    aws = Aws()
    yield aws
    aws.close()


@pytest.fixture
def cloud(server: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Aws:
    """Return the AWS that this process's terraform and aws talk to; helm only writes down its words."""
    tools = tmp_path / "tools"
    tools.mkdir()
    killing_tools.write(tools, "terraform", ("init", "apply"))
    killing_tools.write(tools, "aws", ("update-kubeconfig",))
    applied = tmp_path / "kubectl-apply"
    applied.write_text(
        f'#!/bin/sh\ncase " $* " in *" apply "*) cat > {tmp_path}/applied.json;; '
        f'*) exec {shutil.which("kubectl")} "$@";; esac\n'
    )
    applied.chmod(0o755)
    killing_tools.write(tools, "kubectl", ("apply",), tool=str(applied))
    killing_tools.write(tools, "helm", ("install",), tool=f"echo >> {tmp_path}/helm.log")
    rc = tmp_path / "terraform.rc"
    rc.write_text(f'provider_installation {{\n  filesystem_mirror {{\n    path = "{MIRROR}"\n  }}\n}}\n')
    own = {
        "TF_CLI_CONFIG_FILE": str(rc),
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "CHECKPOINT_DISABLE": "1",
    }
    own |= {"PATH": f"{tools}:{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path / "state")}
    for name, value in (server.environment() | own).items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(lifecycle, "RETRY_S", 0.0)
    return server


def start_up(kill_at: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mlbench.cluster", "up", "aws", *WORDS],
        cwd=ROOT, env={**os.environ, "KILL_AT": kill_at}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip


def test_a_cluster_comes_up_and_goes_without_a_trace(cloud: Aws, tmp_path: Path) -> None:
    before = set(cloud.left())
    command = start_up()
    output, _ = command.communicate()
    assert command.returncode == 0, output
    eks, spec = cloud.client("eks"), journal.load("lab").spec
    made = eks.describe_cluster(name="mlbench-lab")["cluster"]
    assert spec.labels.items() <= made["tags"].items()
    workers = eks.describe_nodegroup(clusterName="mlbench-lab", nodegroupName="workers")["nodegroup"]
    assert workers["scalingConfig"] == {"minSize": 0, "desiredSize": 2, "maxSize": 2}
    assert workers["amiType"] == "AL2023_x86_64_NVIDIA" and workers["labels"]["mlbench/role"] == "worker"
    (taint,) = workers["taints"]  # by the variables of the plan, which without GPUs name another
    assert device_plugin.scheduled(workers["labels"], taint["key"])
    system = eks.describe_nodegroup(clusterName="mlbench-lab", nodegroupName="system")["nodegroup"]
    assert system["labels"] == {"mlbench/role": "system"}
    assert {name for _, name in cloud.addons} == {"vpc-cni", "eks-pod-identity-agent", "aws-ebs-csi-driver"}
    volumes = json.loads((tmp_path / "applied.json").read_text())
    assert volumes["provisioner"] == "ebs.csi.aws.com"
    cloud.claim(volumes["parameters"])
    policies = cloud.client("iam").list_attached_role_policies(RoleName="mlbench-lab-pods-eks")
    assert [policy["PolicyName"] for policy in policies["AttachedPolicies"]] == ["AmazonEBSCSIDriverPolicy"]
    expiry = cloud.client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]
    assert {action["StartTime"].timestamp() for action in expiry} == {spec.expires} and len(expiry) == 2
    assert all(action["DesiredCapacity"] == action["MaxSize"] == 0 for action in expiry)
    subnets = cloud.client("ec2").describe_subnets(Filters=[{"Name": "tag:mlbench-id", "Values": [spec.id]}])
    assert [subnet["MapPublicIpOnLaunch"] for subnet in subnets["Subnets"]] == [False] * 3
    variables = json.loads((journal.root() / "lab/terraform/terraform.tfvars.json").read_text())
    assert variables["allow"] == "192.0.2.7/32"
    contexts = ["kubectl", "config", "get-contexts", "--output=name"]
    assert subprocess.run(contexts, capture_output=True, text=True).stdout.split() == ["mlbench-lab"]
    charts = (tmp_path / "helm.log").read_text()
    assert "nvidia-device-plugin" in charts and "kuberay-operator" in charts
    assert [resource.kind for resource in aws.inventory(spec, lifecycle.run)][0] == "everything in"

    lifecycle.down("lab", print)
    assert set(cloud.left()) == before
    assert subprocess.run(contexts, capture_output=True, text=True).stdout == ""
    assert journal.load("lab").state == "gone"


EVERY_KILL = pytest.mark.skipif(
    not os.environ.get("MLBENCH_TEST_EVERY_KILL"),
    reason="takes minutes; MLBENCH_TEST_EVERY_KILL=1 runs it, docs/clusters.md has what it found",
)
STEPS = ("init", "apply", "update-kubeconfig", "class of volumes", "device plugin", "operator")


@EVERY_KILL
@pytest.mark.parametrize("number", range(1, 1 + len(STEPS)))
def test_what_a_killed_command_has_made_is_reaped(cloud: Aws, number: int) -> None:
    """kill -9 of the command after one of those that it runs."""
    before = set(cloud.left())
    command = start_up(f"after {number}")
    output, _ = command.communicate()
    assert command.returncode == -signal.SIGKILL, output
    assert f"{number}/{len(STEPS)} " in output.splitlines()[-1]
    orphans = set(cloud.left()) - before
    assert bool(orphans) == (number > 1)
    reported: list[str] = []
    assert lifecycle.reap(reported.append, now=clock.wall()) == ["lab"]
    assert set(cloud.left()) == before and not (journal.root() / "lab" / "terraform").exists()
    contexts = ["kubectl", "config", "get-contexts", "--output=name"]
    assert subprocess.run(contexts, capture_output=True, text=True).stdout == ""
    print(f"| after {STEPS[number - 1]} | {len(orphans)} | {'; '.join(reported[:-1])} | nothing |")


@EVERY_KILL
@pytest.mark.parametrize(
    "action",
    ["CreateVpc", "CreateSubnet", "AllocateAddress", "CreateNatGateway", "CreateRole", "POST /clusters",
     "CreateRouteTable", "AttachInternetGateway", "POST /clusters/mlbench-lab/node-groups"],
)  # fmt: skip
def test_what_was_created_when_everything_was_killed_is_reaped(cloud: Aws, action: str) -> None:
    """kill -9 of the command and of Terraform, after AWS has created something and before it has said so."""
    before = set(cloud.left())
    killed: list[str] = []

    def kill(done: str) -> None:
        if done == action and not killed:
            killed.append(done)
            os.killpg(command.pid, signal.SIGKILL)

    cloud.on_request = kill
    command = start_up()
    command.communicate()
    cloud.on_request = lambda action: None
    assert killed and command.returncode == -signal.SIGKILL
    orphans = set(cloud.left()) - before
    assert orphans
    reported: list[str] = []
    assert lifecycle.reap(reported.append, now=clock.wall()) == ["lab"]
    assert set(cloud.left()) == before
    print(f"| {action} | {len(orphans)} | {'; '.join(reported[:-1])} | 0 |")

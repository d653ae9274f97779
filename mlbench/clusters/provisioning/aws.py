"""Amazon EKS by the Terraform module beside this file: a VPC of its own, nodes without public addresses."""

import json
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from mlbench.clusters.provisioning import journal, kubernetes
from mlbench.clusters.provisioning.spec import ClusterSpec, Resource, Run, Step
from mlbench.experiment import clock
from mlbench.experiment.errors import UserError
from mlbench.experiment.overhead import overhead

LOCK_WAIT = "30m"  # that a command waits for one that still holds the state, e.g. of a killed `up`
IMAGES = {True: "AL2023_x86_64_NVIDIA", False: "AL2023_x86_64_STANDARD"}  # by whether nodes have GPUs
BUSY = ("DependencyViolation", "ResourceInUse", "has dependencies", "currently in use")


def complete(spec: ClusterSpec, *, creating: bool) -> ClusterSpec:
    """Return the specification with its region; UserError where something is missing and needed."""
    machine = spec.hardware.machine
    if machine is None or machine.provider != "aws":
        raise UserError(
            f"hardware={spec.hardware.name} is no machine of AWS's", hint="e.g. hardware=aws_g4dn_xlarge"
        )
    if creating and (not spec.allow or spec.allow.endswith("/0")):
        raise UserError(
            "aws needs the addresses that may reach the cluster's API, and not all of them",
            hint="say allow=YOUR.ADDRESS/32",
        )
    return spec.model_copy(update={"place": spec.place or machine.place})


def context(spec: ClusterSpec) -> str:
    """Return the name under which `aws eks` puts the cluster into the kubeconfig."""
    return f"mlbench-{spec.name}"


def prepare(spec: ClusterSpec) -> None:
    """Write the Terraform module and its variables into the cluster's folder."""
    folder = _folder(spec)
    folder.mkdir(parents=True, exist_ok=True)
    module = files("mlbench.clusters.provisioning") / "terraform" / "main.tf"
    (folder / "main.tf").write_text(module.read_text())
    (folder / "terraform.tfvars.json").write_text(json.dumps(variables(spec), indent=2) + "\n")


def variables(spec: ClusterSpec) -> dict[str, Any]:
    """Return the values of the module's variables."""
    machine, beside = spec.hardware.machine, overhead("aws")
    assert machine is not None  # `complete` has refused it
    return {
        "name": f"mlbench-{spec.name}",
        "region": spec.place,
        "tags": spec.labels,
        "allow": spec.allow,
        "head_type": beside.head_type,
        "worker_type": machine.type,
        "workers": spec.nodes,
        "spot": spec.spot,
        "gpu": spec.hardware.gpus > 0,
        "image": IMAGES[spec.hardware.gpus > 0],
        "disk_gb": beside.disk_gb,
        "expires": clock.iso(spec.expires).partition(".")[0] + "Z",
    }


def create(spec: ClusterSpec) -> list[Step]:
    """Return the commands that make the cluster with its workers."""
    kubeconfig = (
        "aws", "eks", "update-kubeconfig", "--name", f"mlbench-{spec.name}", "--region", str(spec.place),
        "--alias", context(spec), "--user-alias", context(spec),
    )  # fmt: skip
    plugin = kubernetes.device_plugin(context(spec)) if spec.hardware.gpus else []
    return [
        _terraform(spec, "Terraform's provider of AWS", "init"),
        _terraform(
            spec, "VPC, NAT gateway, IAM roles, control plane, head and workers (about 15 min)", "apply",
            "-auto-approve", f"-lock-timeout={LOCK_WAIT}",
        ),
        Step(kubeconfig, "access for kubectl"),
        *plugin,
        *kubernetes.operator(spec, context(spec)),
    ]  # fmt: skip


def inventory(spec: ClusterSpec, run: Run) -> list[Resource]:
    """Return what exists: what Terraform's state lists, else what carries the cluster's id as a tag.

    Terraform deletes only what it has created. What it had begun to create when it was killed is in no state,
    and is found by its tag.
    """
    found = _kubeconfig(spec, run)
    if (_folder(spec) / "terraform.tfstate").exists() and (_folder(spec) / ".terraform").exists():
        listed = _terraform(spec, "", "state", "list").argv
        if names := kubernetes.answer(run, listed).split():
            words = ("-auto-approve", f"-lock-timeout={LOCK_WAIT}")
            destroy = _terraform(spec, "delete everything (about 15 min)", "destroy", *words)
            return [Resource("terraform state", f"{len(names)} resources", True, destroy), *found]
    arns = _tagged(spec, run) + _roles(spec, run)
    found += sorted((_resource(spec, arn) for arn in arns), key=lambda one: ORDER.index(one.kind))
    return found


# Kinds of an ARN in the order in which they can be deleted, and the words that delete one by its id.
DELETE: dict[str, Callable[[str], tuple[str, ...]]] = {
    "nodegroup": lambda path: (
        "eks", "delete-nodegroup", "--cluster-name", path.split("/")[0],
        "--nodegroup-name", path.split("/")[1],
    ),
    "cluster": lambda name: ("eks", "delete-cluster", "--name", name),
    "natgateway": lambda name: ("ec2", "delete-nat-gateway", "--nat-gateway-id", name),
    "elastic-ip": lambda name: ("ec2", "release-address", "--allocation-id", name),
    "subnet": lambda name: ("ec2", "delete-subnet", "--subnet-id", name),
    "route-table": lambda name: ("ec2", "delete-route-table", "--route-table-id", name),
    "security-group": lambda name: ("ec2", "delete-security-group", "--group-id", name),
    "internet-gateway": lambda name: ("ec2", "delete-internet-gateway", "--internet-gateway-id", name),
    "vpc": lambda name: ("ec2", "delete-vpc", "--vpc-id", name),
    "role": lambda name: ("iam", "delete-role", "--role-name", name.rpartition("/")[2]),
}  # fmt: skip
ORDER = [*DELETE, "other"]


def _resource(spec: ClusterSpec, arn: str) -> Resource:
    kind, _, name = arn.split(":", 5)[5].partition("/")
    if kind not in DELETE:
        return Resource("other", arn, True, None)
    words = ("aws", *DELETE[kind](name), "--region", str(spec.place))
    return Resource(kind, arn, True, Step(words, f"delete a {kind}", patience=BUSY))


def _tagged(spec: ClusterSpec, run: Run) -> list[str]:
    """Return the ARNs of everything in the region that carries the cluster's id."""
    argv = (
        "aws", "resourcegroupstaggingapi", "get-resources", "--region", str(spec.place), "--output", "json",
        "--tag-filters", f"Key=mlbench-id,Values={spec.id}",
    )  # fmt: skip
    listed = json.loads(kubernetes.answer(run, argv) or "{}").get("ResourceTagMappingList", [])
    return [one["ResourceARN"] for one in listed]


def _roles(spec: ClusterSpec, run: Run) -> list[str]:
    """Return the ARNs of the cluster's IAM roles, which belong to no region; their path has the id."""
    argv = ("aws", "iam", "list-roles", "--path-prefix", f"/mlbench/{spec.id}/", "--output", "json")
    return [one["Arn"] for one in json.loads(kubernetes.answer(run, argv) or "{}").get("Roles", [])]


def _kubeconfig(spec: ClusterSpec, run: Run) -> list[Resource]:
    """Return the entries of the kubeconfig that `aws eks update-kubeconfig` made."""
    argv = ("kubectl", "config", "view", "--output=json")
    view = json.loads(kubernetes.answer(run, argv) or "{}")
    entry = next((one for one in view.get("contexts") or () if one["name"] == context(spec)), None)
    if entry is None:
        return []
    names = {
        "context": entry["name"],
        "user": entry["context"]["user"],
        "cluster": entry["context"]["cluster"],
    }
    return [
        Resource(f"kubeconfig {kind}", name, True, Step(("kubectl", "config", f"delete-{kind}", name), kind))
        for kind, name in names.items()
    ]


def _folder(spec: ClusterSpec) -> Path:
    return journal.root() / spec.name / "terraform"


def _terraform(spec: ClusterSpec, purpose: str, verb: str, *words: str) -> Step:
    asks = verb != "state"
    argv = (
        "terraform",
        f"-chdir={_folder(spec)}",
        verb,
        *(("-input=false", "-no-color") if asks else ()),
        *words,
    )
    return Step(argv, purpose)


def forget(spec: ClusterSpec) -> None:
    """Delete Terraform's folder once nothing is left."""
    shutil.rmtree(_folder(spec), ignore_errors=True)

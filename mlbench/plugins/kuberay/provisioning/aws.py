"""Create Amazon EKS by the Terraform module here: a separate VPC, nodes without public addresses."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

from mlbench import clock
from mlbench.config.errors import ClusterError
from mlbench.plugins.kuberay.pods import ROLE
from mlbench.plugins.kuberay.provisioning import journal, kubernetes
from mlbench.plugins.kuberay.provisioning.spec import ClusterSpec, ProvisioningStep, Resource, Run
from mlbench.record.overhead import overhead

# The lock protects the state, which another command may still hold, e.g. a killed `up`
UNATTENDED = ("-auto-approve", "-lock-timeout=30m")
IMAGES = {True: "AL2023_x86_64_NVIDIA", False: "AL2023_x86_64_STANDARD"}  # by whether nodes have GPUs
# By the same: NVIDIA's device plugin tolerates no other
TAINTS = {True: {"key": "nvidia.com/gpu", "value": "present"}, False: {"key": ROLE, "value": "worker"}}


def complete(spec: ClusterSpec, *, creating: bool) -> ClusterSpec:
    """Return the specification with its region. Raises UserError if a needed value is missing."""
    if creating and (not spec.allow or spec.allow.endswith("/0")):
        raise ClusterError(
            "aws needs the addresses that may reach the cluster's API",
            hint="give allow=YOUR.ADDRESS/32",
        )
    return spec.model_copy(update={"place": spec.place or spec.machine.place})


def context(spec: ClusterSpec) -> str:
    """Return the name under which `aws eks` puts the cluster into the kubeconfig."""
    return f"mlbench-{spec.name}"


def prepare(spec: ClusterSpec) -> None:
    """Write the Terraform module and its variables into the cluster's folder."""
    folder = _folder(spec)
    folder.mkdir(parents=True, exist_ok=True)
    module = files("mlbench.plugins.kuberay.provisioning") / "terraform" / "main.tf"
    (folder / "main.tf").write_text(module.read_text())
    (folder / "terraform.tfvars.json").write_text(json.dumps(variables(spec), indent=2) + "\n")


def variables(spec: ClusterSpec) -> dict[str, Any]:
    """Return the values of the module's variables."""
    beside = overhead("aws")
    return {
        "name": f"mlbench-{spec.name}",
        "region": spec.place,
        "tags": spec.labels,
        "allow": spec.allow,
        "head_type": beside.head_type,
        "worker_type": spec.machine.type,
        "workers": spec.nodes,
        "worker_taint": TAINTS[spec.hardware.gpus > 0],
        "image": IMAGES[spec.hardware.gpus > 0],
        "worker_labels": kubernetes.DEVICE_PLUGIN_LABEL if spec.hardware.gpus else {},
        "disk_gb": spec.disk_gb or beside.disk_gb,
        "local_ssd": spec.machine.local_ssd,
        "reservation": spec.reservation,
        "capacity_type": "CAPACITY_BLOCK" if spec.capacity_block else "SPOT" if spec.spot else "ON_DEMAND",
        "expires": clock.iso(spec.expires).partition(".")[0] + "Z",
    }


def storage_class(spec: ClusterSpec) -> dict[str, Any]:
    """Return the default class of claims, which EKS lacks. Its volumes carry the cluster's tags.

    A volume is made in the zone of the pod that first mounts it.
    """
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    tags = enumerate(map("=".join, spec.labels.items()), 1)
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "gp3", "annotations": annotations},
        "provisioner": "ebs.csi.aws.com",
        "parameters": {"type": "gp3"} | {f"tagSpecification_{number}": tag for number, tag in tags},
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def create(spec: ClusterSpec) -> list[ProvisioningStep]:
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
            *UNATTENDED,
        ),
        ProvisioningStep(kubeconfig, "access for kubectl"),
        ProvisioningStep(
            ("kubectl", "--context", context(spec), "apply", "--filename", "-"), "class of volumes",
            input=json.dumps(storage_class(spec)),
        ),
        *plugin,
        *kubernetes.operator(spec, context(spec)),
    ]  # fmt: skip


# EC2 kinds in the order of deletion: the command that lists them, the field of their ids, and the command
# that deletes one. The source is EC2 itself, as the tagging API continues to list deleted objects.
TAGGED = {
    "NAT gateway": (
        "describe-nat-gateways", "NatGateways[].NatGatewayId", "delete-nat-gateway", "--nat-gateway-id",
    ),
    "address": ("describe-addresses", "Addresses[].AllocationId", "release-address", "--allocation-id"),
    "subnet": ("describe-subnets", "Subnets[].SubnetId", "delete-subnet", "--subnet-id"),
    "route table": (
        "describe-route-tables", "RouteTables[].RouteTableId", "delete-route-table", "--route-table-id",
    ),
    "internet gateway": (
        "describe-internet-gateways", "InternetGateways[].InternetGatewayId", "delete-internet-gateway",
        "--internet-gateway-id",
    ),
    "endpoint": (
        "describe-vpc-endpoints", "VpcEndpoints[?State!='deleted'].VpcEndpointId", "delete-vpc-endpoints",
        "--vpc-endpoint-ids",
    ),
    "launch template": (
        "describe-launch-templates", "LaunchTemplates[].LaunchTemplateId", "delete-launch-template",
        "--launch-template-id",
    ),
    "VPC": ("describe-vpcs", "Vpcs[].VpcId", "delete-vpc", "--vpc-id"),
    "volume": ("describe-volumes", "Volumes[].VolumeId", "delete-volume", "--volume-id"),
}  # fmt: skip
# A deleted NAT gateway stays in the list for an hour.
NAT_FILTER = ("--filter", "Name=state,Values=pending,available,deleting,failed")


def inventory(spec: ClusterSpec, run: Run) -> list[Resource]:
    """Return the existing resources: those with the cluster's id, and those in Terraform's state.

    Terraform deletes only resources that it has created. Those under creation when it was killed are in no
    state. They are found by their tag, and deleted before the rest.
    """
    state = _state(spec, run)
    with ThreadPoolExecutor() as threads:
        listed = dict(zip(TAGGED, threads.map(lambda kind: _tagged(spec, run, kind), TAGGED), strict=True))
    path = f"/mlbench/{spec.id}/"  # of the cluster's IAM roles
    roles = _listed(spec, run, "iam", "list-roles", "--path-prefix", path) or {}
    listed |= {"role": [role["RoleName"] for role in roles.get("Roles", ())]}
    resources = _node_groups(spec, run, state) + _cluster(spec, run, state)
    for kind, names in listed.items():
        for name in names:
            if name not in state:
                if kind == "internet gateway":
                    resources += _attachments(spec, run, name)
                arguments = (
                    ("ec2", *TAGGED[kind][2:]) if kind in TAGGED else ("iam", "delete-role", "--role-name")
                )
                resources.append(
                    Resource(kind, name, True, _aws(spec, f"delete the {kind}", *arguments, name))
                )
    if state:
        destroy = _terraform(spec, "delete everything (about 15 min)", "destroy", *UNATTENDED)
        resources.append(Resource("everything in", "Terraform's state", True, destroy))
    resources.sort(key=lambda resource: resource.kind == "volume")  # nodes go before the volumes they mount
    return resources + _kubeconfig(spec, run)


def conflicts(spec: ClusterSpec, run: Run) -> list[Resource]:
    """Return what would block a new cluster: only EKS's names can be taken."""
    return _cluster(spec, run, "")


def _state(spec: ClusterSpec, run: Run) -> str:
    """Return Terraform's state as JSON text, or "" if it is empty."""
    if not (_folder(spec) / ".terraform").exists():
        return ""
    answer = kubernetes.answer(run, ("terraform", f"-chdir={_folder(spec)}", "show", "-json"))
    return answer if json.loads(answer).get("values", {}).get("root_module", {}).get("resources") else ""


def _tagged(spec: ClusterSpec, run: Run, kind: str) -> list[str]:
    """Return the ids of the objects with the cluster's id as a tag."""
    describe, query, *_ = TAGGED[kind]
    filters = NAT_FILTER if kind == "NAT gateway" else ("--filters",)
    filters = (*filters, f"Name=tag:mlbench-id,Values={spec.id}")
    return _listed(spec, run, "ec2", describe, "--query", query, *filters) or []


def _listed(spec: ClusterSpec, run: Run, *arguments: str) -> Any:
    step = _aws(spec, "", *arguments, "--output", "json")
    return json.loads(kubernetes.answer(run, step.argv) or "null")


def _exists(spec: ClusterSpec, run: Run) -> bool:
    names = _listed(spec, run, "eks", "list-clusters", "--query", "clusters")
    return f"mlbench-{spec.name}" in (names or ())


def _cluster(spec: ClusterSpec, run: Run, state: str) -> list[Resource]:
    """Return the EKS cluster if Terraform's state lacks it, and whether it carries the id."""
    name = f"mlbench-{spec.name}"
    if (f'"{name}"' in state and "aws_eks_cluster" in state) or not _exists(spec, run):
        return []
    arguments = ("eks", "describe-cluster", "--name", name, "--query", "cluster.tags")
    tags = _listed(spec, run, *arguments) or {}
    delete = _aws(spec, "delete the cluster", "eks", "delete-cluster", "--name", name)
    return [Resource("cluster", name, tags.get("mlbench-id") == spec.id, delete)]


def _node_groups(spec: ClusterSpec, run: Run, state: str) -> list[Resource]:
    """Return the node groups that Terraform's state lacks although it has their cluster.

    With them Terraform cannot delete the cluster.
    """
    cluster = f"mlbench-{spec.name}"
    if "aws_eks_cluster" not in state or not _exists(spec, run):
        return []
    arguments = ("eks", "list-nodegroups", "--cluster-name", cluster, "--query", "nodegroups")
    resources = []
    for group in _listed(spec, run, *arguments) or ():
        if f'"{cluster}:{group}"' not in state:
            names = ("--cluster-name", cluster, "--nodegroup-name", group)
            delete = _aws(spec, "delete the node group", "eks", "delete-nodegroup", *names)
            end = _aws(spec, "wait for its end", "eks", "wait", "nodegroup-deleted", *names)
            resources += [Resource("node group", group, True, delete), Resource("nodes of", group, True, end)]
    return resources


def _attachments(spec: ClusterSpec, run: Run, gateway: str) -> list[Resource]:
    """Return the attachments of an internet gateway to VPCs, which must be deleted before it."""
    query = ("--internet-gateway-ids", gateway, "--query", "InternetGateways[].Attachments[].VpcId")
    resources = []
    for vpc in _listed(spec, run, "ec2", "describe-internet-gateways", *query) or ():
        own = ("ec2", "detach-internet-gateway", "--internet-gateway-id", gateway, "--vpc-id", vpc)
        step = _aws(spec, "detach the internet gateway", *own)
        resources.append(Resource("attachment of", gateway, True, step))
    return resources


def _aws(spec: ClusterSpec, purpose: str, *arguments: str) -> ProvisioningStep:
    return ProvisioningStep(("aws", *arguments, "--region", str(spec.place)), purpose)


def _kubeconfig(spec: ClusterSpec, run: Run) -> list[Resource]:
    """Return the entries of the kubeconfig that `aws eks update-kubeconfig` made."""
    argv = ("kubectl", "config", "view", "--output=json")
    view = json.loads(kubernetes.answer(run, argv) or "{}")
    entry = next((entry for entry in view.get("contexts") or () if entry["name"] == context(spec)), None)
    if entry is None:
        return []
    names = entry["context"] | {"context": entry["name"]}
    resources = []
    for kind in ("context", "user", "cluster"):
        delete = ProvisioningStep(("kubectl", "config", f"delete-{kind}", names[kind]), kind)
        resources.append(Resource(f"kubeconfig {kind}", names[kind], True, delete))
    return resources


def _folder(spec: ClusterSpec) -> Path:
    return journal.root() / spec.name / "terraform"


def _terraform(spec: ClusterSpec, purpose: str, verb: str, *arguments: str) -> ProvisioningStep:
    argv = ("terraform", f"-chdir={_folder(spec)}", verb, "-input=false", "-no-color", *arguments)
    return ProvisioningStep(argv, purpose)


def forget(spec: ClusterSpec) -> None:
    """Delete Terraform's folder once nothing is left."""
    shutil.rmtree(_folder(spec), ignore_errors=True)

"""Create Google Kubernetes Engine by the gcloud command: a separate network, private nodes, no firewall rule.

The cluster's API is reached by its DNS name with the user's Google identity, so it has no address that could
be attacked from the internet. Nodes have no public address either. A NAT gateway lets them fetch images.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mlbench.config.errors import ClusterError
from mlbench.plugins.kuberay.provisioning import kubernetes
from mlbench.plugins.kuberay.provisioning.spec import HOUR, ClusterSpec, ProvisioningStep, Resource, Run
from mlbench.record.overhead import overhead

SUBNET = "10.64.0.0/20"  # nodes; in a separate network, so it meets no other range
POOL = "workers"
# GKE's answers while it still creates, resizes or repairs the cluster.
BUSY = (
    "incompatible operation",
    "is currently being",
    "try again once it is done",
    "is not ready",
    "resourceInUseByAnotherResource",
)


def complete(spec: ClusterSpec, *, creating: bool) -> ClusterSpec:
    """Return the specification with project and zone. Raises UserError if a needed one is missing."""
    project = spec.project or os.environ.get("CLOUDSDK_CORE_PROJECT")
    if not project and creating:
        raise ClusterError("gke needs the project that pays", hint="give project=ID")
    zone = spec.place or spec.machine.place
    return spec.model_copy(update={"project": project or "PROJECT", "place": zone})


def context(spec: ClusterSpec) -> str:
    """Return the name under which gcloud puts the cluster into the kubeconfig."""
    return f"gke_{spec.project}_{spec.place}_mlbench-{spec.name}"


def create(spec: ClusterSpec) -> list[ProvisioningStep]:
    """Return the commands that make the cluster, with its worker pool at zero nodes."""
    name, region, beside = f"mlbench-{spec.name}", _region(spec), overhead("gke")
    # For the kinds without labels.
    note = ("--description", " ".join(f"{label}={value}" for label, value in spec.labels.items()))
    labels = ",".join(f"{label}={value}" for label, value in spec.labels.items())
    size = f"--disk-size={spec.disk_gb or beside.disk_gb}"
    disk = (f"--disk-type={beside.disk_type}", size)
    worker_disk = (f"--disk-type={spec.machine.disk_type or beside.disk_type}", size)
    machine = [f"--machine-type={spec.machine.type}"]
    if spec.machine.accelerator:
        # CUDA 13.0 needs driver 580.65.06 (CUDA Toolkit release notes); `default` is the older of GKE's two
        gpu = f"type={spec.machine.accelerator},count={spec.hardware.gpus},gpu-driver-version=latest"
        machine.append(f"--accelerator={gpu}")
    machine += ["--spot"] if spec.spot else []
    machine += ["--ephemeral-storage-local-ssd"] if spec.machine.local_ssd else []
    if spec.flex_start:  # GKE, "Run a large-scale workload with flex-start"
        machine += [
            "--flex-start",
            "--reservation-affinity=none",
            "--location-policy=ANY",
            "--no-enable-autorepair",
        ]
    if spec.reservation:
        machine += ["--reservation-affinity=specific", f"--reservation={spec.reservation}"]
    # A separate account: the default one has no rights in organizations made after May 2024, so no image
    # comes.
    account = (f"--service-account={spec.service_account}",) if spec.service_account else ()
    node = (*account, "--enable-image-streaming")
    # GKE itself taints nodes with GPUs
    taint = () if spec.hardware.gpus else ("--node-taints=mlbench/role=worker:NoSchedule",)
    return [
        _gcloud(
            spec, "a separate network", "compute", "networks", "create", name, "--subnet-mode=custom", *note
        ),
        _gcloud(
            spec, "its range of addresses", "compute", "networks", "subnets", "create", name,
            f"--network={name}", f"--region={region}", f"--range={SUBNET}",
            "--enable-private-ip-google-access", *note,
        ),
        _gcloud(
            spec, "a router", "compute", "routers", "create", name, f"--network={name}",
            f"--region={region}", *note,
        ),
        _gcloud(
            spec, "a NAT gateway, through which private nodes fetch images", "compute", "routers", "nats",
            "create", name, f"--router={name}", f"--region={region}", "--auto-allocate-nat-external-ips",
            "--nat-all-subnet-ip-ranges",
        ),
        _gcloud(
            spec, "control plane and head node (about 6 min)", "container", "clusters", "create", name,
            f"--zone={spec.place}", f"--network={name}", f"--subnetwork={name}", "--enable-ip-alias",
            "--enable-private-nodes", "--enable-dns-access", "--no-enable-ip-access",
            "--enable-dataplane-v2", "--enable-shielded-nodes", "--release-channel=regular",
            f"--workload-pool={spec.project}.svc.id.goog", "--num-nodes=1",
            f"--machine-type={beside.head_type}", *disk, *node, "--node-labels=mlbench/role=system",
            f"--labels={labels}",
        ),
        _gcloud(
            spec, "pool of workers, empty until a run requests them", "container", "node-pools", "create",
            POOL, f"--cluster={name}", f"--zone={spec.place}", *machine, *worker_disk, *node, "--num-nodes=0",
            "--enable-autoscaling", "--min-nodes=0", f"--max-nodes={spec.nodes}",
            "--node-labels=mlbench/role=worker", *taint,
            # The cloud itself deletes a node that is older than the cluster's lifetime.
            f"--max-run-duration={round(spec.hours * HOUR)}s", f"--labels={labels}", patience=BUSY,
        ),
        _gcloud(
            spec, "access for kubectl", "container", "clusters", "get-credentials", name,
            f"--zone={spec.place}", "--dns-endpoint",
        ),
        *kubernetes.operator(spec, context(spec)),
    ]  # fmt: skip


def inventory(spec: ClusterSpec, run: Run) -> list[Resource]:
    """Return the resources under the cluster's name, in the order of deletion."""
    name, region = f"mlbench-{spec.name}", _region(spec)
    zone, region_option = (f"--zone={spec.place}",), (f"--region={region}",)
    # Disks of volumes outlive their cluster. GKE labels them with its name, which is in use only once.
    disks = f"labels.goog-k8s-cluster-name={name}"
    kinds = (
        ("cluster", ("container", "clusters"), zone, f"name={name}"),
        ("disk", ("compute", "disks"), zone, disks),
        ("router", ("compute", "routers"), region_option, f"name={name}"),
        ("subnet", ("compute", "networks", "subnets"), region_option, f"name={name}"),
        ("network", ("compute", "networks"), (), f"name={name}"),
    )
    with ThreadPoolExecutor() as threads:
        listed = threads.map(lambda kind: _list(spec, run, *kind[1], "list", f"--filter={kind[3]}"), kinds)
    resources: list[Resource] = []
    # A disk belongs to the cluster, which carries the id as a label. The others have it in their description.
    note = f"mlbench-id={spec.id} "
    for (kind, group, at, _), answers in zip(kinds, listed, strict=True):
        for item in answers:
            if at == region_option and not item.get("region", "").endswith(f"/{region}"):
                continue
            delete = _gcloud(spec, f"delete the {kind}", *group, "delete", item["name"], *at, patience=BUSY)
            label = item.get("resourceLabels", {}).get("mlbench-id")
            ours = kind == "disk" or label == spec.id or note in item.get("description", "")
            resources.append(Resource(kind, item["name"], ours, delete))
    return resources


def _region(spec: ClusterSpec) -> str:
    return str(spec.place).rpartition("-")[0]


def _gcloud(
    spec: ClusterSpec, purpose: str, *arguments: str, patience: tuple[str, ...] = ()
) -> ProvisioningStep:
    return ProvisioningStep(
        ("gcloud", *arguments, f"--project={spec.project}", "--quiet"), purpose, patience=patience
    )


def _list(spec: ClusterSpec, run: Run, *arguments: str) -> list[dict[str, Any]]:
    argv = ("gcloud", *arguments, f"--project={spec.project}", "--format=json", "--quiet")
    return json.loads(kubernetes.answer(run, argv) or "[]")

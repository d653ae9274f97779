"""Define the fields of the cluster's YAML file, in addition to those of every cluster."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from mlbench.config.errors import ClusterError
from mlbench.config.experiment import Cluster, Experiment, Hardware, PositiveFloat, PositiveInt
from mlbench.record import cost, format
from mlbench.record.build_record import FABRIC_GPUS
from mlbench.tasks import registry, script

Label = Annotated[str, Field(pattern=r"^([\w.-]+/)?[\w.-]+$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
# 40 characters that may begin the name of a RayJob, which has at most 47 (KubeRay v1.7.0, validation.go)
Part = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
PROVISION_S, LIMIT_S = 1200, 9600  # s until pods run, and of a whole run at mini scale
LIMIT_SHARE = 2.0  # of a run's expected time, after which it is stopped
DISK_SHARE = 1.05  # factor from a data set's bytes to those of its files
CAPABILITY = 7.5  # the lowest with kernels in PyTorch's wheels with CUDA 13.0, pytorch/pytorch PR 175253


class Config(Cluster):
    """A cluster's fields and those of KubeRay, explained in its YAML file."""

    runs_as: Literal["attached"]
    context: str | None
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    image: str | None
    head_cpus: PositiveFloat
    head_memory_gib: PositiveFloat
    worker_memory_gib: PositiveFloat | None
    shm_gib: PositiveFloat | None
    head_node_labels: dict[Label, str]
    worker_node_labels: dict[Label, str]
    spot: bool
    autoscaling: bool
    data_claim: Name | None
    data_bucket: Annotated[str, Field(pattern=r"^(gs|s3)://[^/]+(/[^/]+)*$")] | None
    data_gib: PositiveInt | None
    data_mib_per_s: PositiveFloat
    results_claim: Name | None
    environment_secret: Name | None
    working_dir: str | None
    mounts: dict[Path, Name]
    hugepages_mib: PositiveInt | None
    ipc_lock: bool
    read_only_root: bool
    user: Annotated[int, Field(ge=0)] | None
    head_pod: dict[str, Any]
    worker_pod: dict[str, Any]
    shared: Part | None
    shared_limit_s: PositiveInt
    queue: Name | None
    topology: Label | None
    provision_s: PositiveInt | None
    limit_s: PositiveInt | None
    keep_s: Annotated[int, Field(ge=0)]


def cluster_config(experiment: Experiment) -> Config:
    """Return the cluster's fields. Raises UserError if no run can be submitted with them."""
    assert isinstance(experiment.cluster, Config)  # composition has validated it by this class
    config = experiment.cluster
    if config.image is None:
        raise ClusterError(
            "cluster=kuberay needs an image for its pods",
            hint="cluster.image=REPOSITORY@sha256:DIGEST, see docs/clusters.md",
        )
    if "@sha256:" not in config.image:
        raise ClusterError(
            f"cluster.image={config.image} names a tag, which can move to another image",
            hint="give its digest: cluster.image=REPOSITORY@sha256:DIGEST",
        )
    digest = config.image.rpartition("@sha256:")[2]
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ClusterError(
            f"cluster.image={config.image}: {digest} is no digest of 64 hexadecimal digits",
            hint="docker buildx imagetools inspect IMAGE prints it",
        )
    if experiment.max_failures and config.results_claim is None:
        raise ClusterError(
            f"max_failures={experiment.max_failures}: the workers have no shared place for checkpoints",
            hint="give cluster.results_claim=NAME (ReadWriteMany), or retries=N instead",
        )
    if config.data_claim and config.data_bucket:
        raise ClusterError(
            f"cluster.data_claim={config.data_claim} and cluster.data_bucket={config.data_bucket} cannot "
            "be used together",
            hint="leave one of them out",
        )
    return config


def data_gib(experiment: Experiment) -> int | None:
    """Return the size of a worker's copy of the data set on its node's disk in GiB, or None without one."""
    config, task = cluster_config(experiment), experiment.task
    if config.data_bucket and isinstance(task, script.Config) and config.data_gib is None:
        raise ClusterError(
            f"cluster.data_bucket={config.data_bucket}: the size of a script's data is unknown",
            hint="give cluster.data_gib=GIB: the bucket is copied to /data of each node before Ray starts",
        )
    if config.data_bucket is None or task.dataset == registry.NO_DATASET and config.data_gib is None:
        return None
    info = (registry.datasets(task.name) or {}).get(task.dataset)
    return config.data_gib or (math.ceil(DISK_SHARE * info.prepared / 2**30) if info else None)


def provision_s(experiment: Experiment) -> int:
    """Return the s within which all pods must run, including the copies of the data set."""
    config = cluster_config(experiment)
    copy_s = math.ceil((data_gib(experiment) or 0) * 1024 / config.data_mib_per_s)
    if config.provision_s is not None and config.provision_s <= copy_s:
        raise ClusterError(
            f"cluster.provision_s={config.provision_s}: to copy {data_gib(experiment)} GiB to a node takes "
            f"{copy_s} s at cluster.data_mib_per_s={config.data_mib_per_s:g}",
            hint="remove provision_s, or give the write rate of your nodes' disks",
        )
    return config.provision_s or PROVISION_S + copy_s


def expected_s(experiment: Experiment) -> float | None:
    """Return the expected s of a run, from runs measured here or published ones, or None if unknown."""
    from mlbench.record import run_folders  # imported here: a plan reads no records
    from mlbench.studies.estimate import estimates

    return estimates([experiment], run_folders.readable(experiment.output_root))[0].seconds


def limit_s(experiment: Experiment) -> int:
    """Return the s after which the run is stopped, at official scale by the time of earlier runs.

    Raises UserError for a limit that is too short, and at official scale if no run gives one.
    """
    config, provision = cluster_config(experiment), provision_s(experiment)
    known = expected_s(experiment) if experiment.scale == "official" or config.limit_s else None
    if config.limit_s is None and experiment.scale == "official" and known is None:
        rate = cost.usd_per_hour(experiment)
        costs = f", an hour costs {format.usd(rate)} by the profile" if rate else ""
        raise ClusterError(
            f"scale=official: no earlier run shows how long task={experiment.task.name} takes on "
            f"hardware={experiment.hardware.name}{costs}",
            hint="give its longest duration in seconds, e.g. cluster.limit_s=86400",
        )
    needed = provision + (known or 0)
    limit = config.limit_s or max(LIMIT_S + provision - PROVISION_S, math.ceil(LIMIT_SHARE * needed))
    if limit <= needed:
        lasts = f" and a run of about {known:.0f} s" if known else ""
        raise ClusterError(
            f"cluster.limit_s={limit} leaves no time to train after {provision} s of provisioning{lasts}",
            hint="raise cluster.limit_s",
        )
    return limit


def require_data(experiment: Experiment) -> None:
    """Raise UserError for an official run whose paid nodes would have no data."""
    config, task = cluster_config(experiment), experiment.task
    if registry.needs_preparation(task, experiment.scale) and not (config.data_claim or config.data_bucket):
        raise ClusterError(
            f"scale=official: the cluster has no place with the data set {task.dataset!r}",
            hint="give cluster.data_claim=NAME or cluster.data_bucket=gs://BUCKET/FOLDER, "
            "mlbench cluster data prepare fills either",
        )


def require_kernels(hardware: Hardware) -> None:
    """Raise UserError for a GPU without kernels in the image's PyTorch, or for several parts of GPUs."""
    if "/mig-" in hardware.gpu_resource and hardware.gpus > 1:
        raise ClusterError(
            f"hardware.gpus={hardware.gpus} of {hardware.gpu_resource}: CUDA shows a process one of them",
            hint="give hardware.gpus=1 hardware.workers_per_node=1",
        )
    if hardware.capability is not None and hardware.capability < CAPABILITY:
        raise ClusterError(
            f"hardware={hardware.name}: its {hardware.gpu_model} has compute capability "
            f"{hardware.capability:g}, and PyTorch with CUDA 13.0, as image/build installs it, has kernels "
            f"from {CAPABILITY:g} on",
            hint="choose a T4 or newer, or hardware.capability=null for a custom image with such kernels",
        )


def require_fabric(hardware: Hardware, nodes: int, worker_pod: Mapping[str, Any]) -> None:
    """Raise UserError for several cloud nodes whose GPUs would exchange gradients by TCP alone."""
    if nodes > 1 and hardware.machine and hardware.gpus >= FABRIC_GPUS and not worker_pod:
        raise ClusterError(
            f"{nodes} nodes of hardware={hardware.name}: mlbench does not set up the fabric between "
            "their GPUs "
            "(EFA, GPUDirect), so a result would be that of TCP",
            hint=f"give workers={hardware.workers_per_node} for one node, or name the fabric's devices "
            "in cluster.worker_pod= (docs/kuberay.md)",
        )

"""What its YAML file holds beside a cluster's own fields."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from mlbench.config.errors import UserError
from mlbench.config.experiment import Cluster, Experiment, Hardware, PositiveFloat, PositiveInt
from mlbench.record.build_record import FABRIC_GPUS
from mlbench.tasks import registry

Label = Annotated[str, Field(pattern=r"^([\w.-]+/)?[\w.-]+$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
# 40 characters that may begin the name of a RayJob, which has at most 47 (KubeRay v1.7.0, validation.go)
Part = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
CAPABILITY = 7.5  # the least that PyTorch's wheels with CUDA 13.0 have kernels for, pytorch/pytorch PR 175253


class Config(Cluster):
    """A cluster's fields and this one's own; its YAML file says what each means."""

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
    results_claim: Name | None
    environment_secret: Name | None
    head_pod: dict[str, Any]
    worker_pod: dict[str, Any]
    shared: Part | None
    shared_limit_s: PositiveInt
    queue: Name | None
    topology: Label | None
    provision_s: PositiveInt
    limit_s: PositiveInt
    keep_s: Annotated[int, Field(ge=0)]


def cluster_config(experiment: Experiment) -> Config:
    """Return the cluster's fields; UserError where no run can be submitted with them."""
    assert isinstance(experiment.cluster, Config)  # composition has validated it by this class
    config = experiment.cluster
    if config.image is None:
        raise UserError(
            "cluster=kuberay needs the image that its pods run",
            hint="cluster.image=REPOSITORY@sha256:DIGEST; docs/clusters.md says how it is built",
        )
    if "@sha256:" not in config.image:
        raise UserError(
            f"cluster.image={config.image} names a tag, which may be another image tomorrow",
            hint="give its digest: cluster.image=REPOSITORY@sha256:DIGEST",
        )
    if config.provision_s >= config.limit_s:
        raise UserError(
            f"cluster.limit_s={config.limit_s} leaves no time to train after cluster.provision_s="
            f"{config.provision_s}",
            hint="raise cluster.limit_s",
        )
    if config.data_claim and config.data_bucket:
        raise UserError(
            f"cluster.data_claim={config.data_claim} and cluster.data_bucket={config.data_bucket} both say "
            "where the data are",
            hint="leave one of them out",
        )
    return config


def require_data(experiment: Experiment) -> None:
    """Raise UserError for an official run whose nodes would have no data when they are paid for."""
    config, task = cluster_config(experiment), experiment.task
    if registry.needs_preparation(task, experiment.scale) and not (config.data_claim or config.data_bucket):
        raise UserError(
            f"scale=official: the cluster has nowhere to read the data set {task.dataset!r} from",
            hint="say cluster.data_claim=NAME or cluster.data_bucket=gs://BUCKET/FOLDER; python -m "
            "mlbench.cluster data prepare fills either",
        )


def require_kernels(hardware: Hardware) -> None:
    """Raise UserError for a GPU that the image's PyTorch has no kernels for, or for several parts of GPUs."""
    if "/mig-" in hardware.gpu_resource and hardware.gpus > 1:
        raise UserError(
            f"hardware.gpus={hardware.gpus} of {hardware.gpu_resource}: CUDA shows a process one of them",
            hint="say hardware.gpus=1 hardware.workers_per_node=1",
        )
    if hardware.capability is not None and hardware.capability < CAPABILITY:
        raise UserError(
            f"hardware={hardware.name}: its {hardware.gpu_model} has compute capability "
            f"{hardware.capability:g}, and PyTorch with CUDA 13.0, as image/build installs it, has kernels "
            f"from {CAPABILITY:g} on",
            hint="choose a T4 or newer; with an image of your own that has them: hardware.capability=null",
        )


def require_fabric(hardware: Hardware, nodes: int, worker_pod: Mapping[str, Any]) -> None:
    """Raise UserError for several nodes of a cloud whose GPUs would exchange gradients by TCP alone."""
    if nodes > 1 and hardware.machine and hardware.gpus >= FABRIC_GPUS and not worker_pod:
        raise UserError(
            f"{nodes} nodes of hardware={hardware.name}: nothing here sets up the fabric between their GPUs "
            "(EFA, GPUDirect), so a result would be that of TCP",
            hint=f"take one node (workers={hardware.workers_per_node}); a cluster that has the fabric: name "
            "its devices in cluster.worker_pod= (docs/kuberay.md)",
        )

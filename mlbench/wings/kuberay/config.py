"""What its YAML file holds beside a cluster's own fields."""

from typing import Annotated, Literal

from pydantic import Field

from mlbench.config.errors import UserError
from mlbench.config.experiment import Cluster, Experiment, PositiveFloat, PositiveInt

Label = Annotated[str, Field(pattern=r"^([\w.-]+/)?[\w.-]+$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
# 40 characters that may begin the name of a RayJob, which has at most 47 (KubeRay v1.7.0, validation.go)
Part = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]


class Config(Cluster):
    """A cluster's fields and this one's own; its YAML file says what each means."""

    runs_as: Literal["attached"]
    context: str | None
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    image: str | None
    head_cpus: PositiveFloat
    head_memory_gib: PositiveFloat
    worker_memory_gib: PositiveFloat
    shm_gib: PositiveFloat
    head_node_labels: dict[Label, str]
    worker_node_labels: dict[Label, str]
    spot: bool
    autoscaling: bool
    data_claim: Name | None
    results_claim: Name | None
    mlflow: bool
    environment_secret: Name | None
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
    return config

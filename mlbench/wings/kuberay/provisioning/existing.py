"""A Kubernetes that is there already, e.g. a laboratory's: only the KubeRay operator is added to it."""

from mlbench.config.errors import UserError
from mlbench.wings.kuberay.provisioning import kubernetes
from mlbench.wings.kuberay.provisioning.spec import ClusterSpec, ProvisioningStep, Resource, Run


def complete(spec: ClusterSpec, *, creating: bool) -> ClusterSpec:
    """Return the specification; UserError without the context that names the cluster."""
    if not spec.context and creating:
        raise UserError(
            "existing needs the context of your kubeconfig that names the cluster",
            hint="say context=NAME; `kubectl config get-contexts` lists them",
        )
    return spec.model_copy(update={"context": spec.context or "CONTEXT", "spot": False})


def context(spec: ClusterSpec) -> str:
    """Return the kubeconfig's context."""
    return str(spec.context)


def create(spec: ClusterSpec) -> list[ProvisioningStep]:
    """Return the command that installs the operator, unless somebody has."""
    return kubernetes.operator(spec, context(spec))


def inventory(spec: ClusterSpec, run: Run) -> list[Resource]:
    """Return the charts that mlbench installed."""
    return kubernetes.charts(spec, context(spec), run)

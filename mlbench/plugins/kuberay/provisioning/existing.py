"""Use an existing Kubernetes, e.g. a laboratory's: only the KubeRay operator is added to it."""

import json

from mlbench.config.errors import ClusterError
from mlbench.plugins.kuberay.provisioning import kubernetes
from mlbench.plugins.kuberay.provisioning.spec import ClusterSpec, ProvisioningStep, Resource, Run


def complete(spec: ClusterSpec, *, creating: bool) -> ClusterSpec:
    """Return the specification. Raises UserError without the context that names the cluster."""
    if not spec.context and creating:
        raise ClusterError(
            "existing needs a context of your kubeconfig",
            hint="give context=NAME, `kubectl config get-contexts` lists them",
        )
    return spec.model_copy(update={"context": spec.context or "CONTEXT", "spot": False})


def context(spec: ClusterSpec) -> str:
    """Return the kubeconfig's context."""
    return str(spec.context)


def create(spec: ClusterSpec) -> list[ProvisioningStep]:
    """Return the command that installs the operator, unless it is installed."""
    return kubernetes.operator(spec, context(spec))


def inventory(spec: ClusterSpec, run: Run) -> list[Resource]:
    """Return the charts that mlbench installed into it.

    Their custom resource definitions stay, as helm leaves them: their deletion would delete other users'
    clusters.
    """
    argv = ("helm", "list", "--all-namespaces", "--kube-context", context(spec), "--output=json")
    releases = json.loads(kubernetes.answer(run, (*argv, "--selector", f"mlbench-id={spec.id}")) or "[]")
    resources = []
    for release in releases:
        uninstall = (
            "helm", "uninstall", release["name"], "--namespace", release["namespace"],
            "--kube-context", context(spec), "--wait", "--timeout", kubernetes.WAIT,
        )  # fmt: skip
        step = ProvisioningStep(uninstall, f"uninstall {release['name']}")
        resources.append(Resource("chart", release["name"], True, step))
    return resources

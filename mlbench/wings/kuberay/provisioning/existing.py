"""A Kubernetes that is there already, e.g. a laboratory's: only the KubeRay operator is added to it."""

import json

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
    """Return the charts that mlbench installed into it.

    Their custom resource definitions stay, as helm leaves them: deleting those would delete others' clusters.
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

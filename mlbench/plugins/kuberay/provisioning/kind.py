"""Create Kubernetes in containers of this machine by kind, for trials without a cloud and without a bill."""

import json

from mlbench.config.errors import ClusterError
from mlbench.plugins.kuberay.provisioning import kubernetes
from mlbench.plugins.kuberay.provisioning.spec import ClusterSpec, ProvisioningStep, Resource, Run


def complete(spec: ClusterSpec, *, creating: bool) -> ClusterSpec:
    """Return the specification. Raises UserError for hardware that containers cannot provide."""
    if spec.hardware.gpus:
        raise ClusterError(
            f"hardware={spec.hardware.name} has GPUs, but nodes of kind have none", hint="hardware=local"
        )
    return spec.model_copy(update={"spot": False})


def context(spec: ClusterSpec) -> str:
    """Return the name under which kind puts the cluster into the kubeconfig."""
    return f"kind-mlbench-{spec.name}"


def create(spec: ClusterSpec) -> list[ProvisioningStep]:
    """Return the commands that make a cluster with a node for the head and a node a worker.

    The head needs a node without the control plane: kind removes its taint only if it is the single node.
    """
    own = {"mlbench-cluster": spec.name, "mlbench-id": spec.id}
    roles = ["system", *["worker"] * spec.workers]
    nodes = [{"role": "control-plane", "labels": own}]
    nodes += [{"role": "worker", "labels": {**own, "mlbench/role": role}} for role in roles]
    config = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}
    argv = ("kind", "create", "cluster", "--name", f"mlbench-{spec.name}", "--config", "-", "--wait", "5m")
    return [
        ProvisioningStep(argv, f"{len(nodes)} nodes in containers (about 2 min)", input=json.dumps(config)),
        *kubernetes.operator(spec, context(spec)),
    ]


def inventory(spec: ClusterSpec, run: Run) -> list[Resource]:
    """Return the cluster of that name. It is ours if its nodes carry our id, or do not answer yet."""
    name = f"mlbench-{spec.name}"
    if name not in kubernetes.answer(run, ("kind", "get", "clusters")).split():
        return []
    label = f"mlbench-id={spec.id}"
    nodes = run(("kubectl", "--context", context(spec), "get", "nodes", "--output=name", "-l", label))
    ours = nodes.returncode != 0 or bool(nodes.stdout.strip())
    delete = ProvisioningStep(("kind", "delete", "cluster", "--name", name), "delete the containers")
    return [Resource("cluster", name, ours, delete)]

"""Install what mlbench needs on every Kubernetes: the KubeRay operator, and NVIDIA's device plugin."""

from collections.abc import Sequence

from mlbench.config.errors import ClusterError
from mlbench.plugins.kuberay.provisioning.spec import ClusterSpec, ProvisioningStep, Run
from mlbench.plugins.kuberay.rayjob import OPERATOR

KUBERAY = "1.7.0"  # 2026-08-20; mlbench/plugins/kuberay writes manifests for it
KUBERAY_CHARTS = "https://ray-project.github.io/kuberay-helm/"
KUBERAY_NAMESPACE = "kuberay-system"
DEVICE_PLUGIN = "0.17.1"  # of NVIDIA/k8s-device-plugin
DEVICE_PLUGIN_CHARTS = "https://nvidia.github.io/k8s-device-plugin"
# The chart schedules its pods to nodes with this label, or with one of node-feature-discovery's, which is
# missing in a managed group (values.yaml of v0.17.1, affinity)
DEVICE_PLUGIN_LABEL = {"nvidia.com/gpu.present": "true"}
WAIT = "5m"  # time limit of a chart's pods to become ready


def operator(spec: ClusterSpec, context: str) -> list[ProvisioningStep]:
    """Return the step that installs the KubeRay operator, unless one runs. `down` leaves its CRDs."""
    probe = (
        "kubectl", "--context", context, "wait", "deployment", "--all-namespaces", "--timeout=0",
        "--for=condition=Available", f"--selector={OPERATOR['key']} in ({','.join(OPERATOR['values'])})",
    )  # fmt: skip
    chart = ("kuberay-operator", KUBERAY_CHARTS, KUBERAY, KUBERAY_NAMESPACE)
    argv = (*_install(context, *chart), "--labels", f"mlbench-id={spec.id}")
    return [ProvisioningStep(argv, f"KubeRay operator {KUBERAY}", unless=probe)]


def device_plugin(context: str) -> list[ProvisioningStep]:
    """Return the step that lets Kubernetes assign GPUs if the provider's nodes have only the driver."""
    chart = ("nvidia-device-plugin", DEVICE_PLUGIN_CHARTS, DEVICE_PLUGIN, "nvidia-device-plugin")
    return [ProvisioningStep(_install(context, *chart), f"NVIDIA device plugin {DEVICE_PLUGIN}")]


def _install(context: str, chart: str, repository: str, version: str, namespace: str) -> tuple[str, ...]:
    # `upgrade --install` would reset a release whose operator is not answering, and `down` would remove it.
    return (
        "helm", "install", chart, chart, "--repo", repository, "--version", version,
        "--kube-context", context, "--namespace", namespace, "--create-namespace", "--wait",
        "--timeout", WAIT,
    )  # fmt: skip


def answer(run: Run, argv: Sequence[str]) -> str:
    """Return the output of a command that lists resources. Raises UserError if the command fails."""
    done = run(argv)
    if done.returncode:
        raise ClusterError(
            f"{argv[0]} cannot list existing resources: {done.stderr.strip()[-300:]}",
            hint="fix that and repeat the command",
        )
    return done.stdout

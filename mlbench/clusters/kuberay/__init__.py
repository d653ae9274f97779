"""A Kubernetes cluster with KubeRay: a run is submitted as a RayJob, and its event log is collected here."""

from mlbench.clusters.kuberay.config import Config as Config
from mlbench.clusters.kuberay.expiry import expires as expires
from mlbench.clusters.kuberay.rayjob import manifest as manifest
from mlbench.clusters.kuberay.shared import end_sweep as end_sweep
from mlbench.clusters.kuberay.shared import sweep_order as sweep_order
from mlbench.clusters.kuberay.submission import attach as attach
from mlbench.clusters.kuberay.submission import check as check
from mlbench.clusters.kuberay.submission import submit as submit

shares_files = False

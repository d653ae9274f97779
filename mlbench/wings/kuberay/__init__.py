"""A Kubernetes cluster with KubeRay: a run is submitted as a RayJob, and its event log is collected here."""

from mlbench.wings.kuberay.config import Config as Config
from mlbench.wings.kuberay.dataset import source as data_source  # noqa: F401
from mlbench.wings.kuberay.rayjob import manifest as manifest
from mlbench.wings.kuberay.shared import end_sweep as end_sweep
from mlbench.wings.kuberay.shared import sweep_order as sweep_order
from mlbench.wings.kuberay.submission import attach as attach
from mlbench.wings.kuberay.submission import check as check
from mlbench.wings.kuberay.submission import expires as expires
from mlbench.wings.kuberay.submission import submit as submit

shares_files = False

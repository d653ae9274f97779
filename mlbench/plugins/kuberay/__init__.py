"""Run on a Kubernetes cluster with KubeRay: submit a run as a RayJob and collect its event log here."""

from mlbench.plugins.kuberay.config import Config as Config
from mlbench.plugins.kuberay.dataset import source as data_source  # noqa: F401
from mlbench.plugins.kuberay.rayjob import manifest as manifest
from mlbench.plugins.kuberay.shared import end_sweep as end_sweep
from mlbench.plugins.kuberay.shared import sweep_order as sweep_order
from mlbench.plugins.kuberay.submission import attach as attach
from mlbench.plugins.kuberay.submission import check as check
from mlbench.plugins.kuberay.submission import down as down
from mlbench.plugins.kuberay.submission import expires as expires
from mlbench.plugins.kuberay.submission import remains as remains
from mlbench.plugins.kuberay.submission import submit as submit
from mlbench.plugins.kuberay.working_dir import complete as complete

shares_files = False

"""Until when the cluster exists that a run is submitted to, where `mlbench.cluster up` made it from here."""

from mlbench import clock
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.record.format import duration
from mlbench.wings.kuberay.api import current_context
from mlbench.wings.kuberay.config import cluster_config
from mlbench.wings.kuberay.provisioning.journal import Journal, journals
from mlbench.wings.kuberay.provisioning.plan import provider


def expires(experiment: Experiment) -> float | None:
    """Return when the cluster expires (s since 1970); None for one that a cloud does not bill to us."""
    log = _journal(experiment)
    return log.spec.expires if log else None


def require_time(experiment: Experiment) -> None:
    """Raise UserError for a cluster that has expired: its nodes go, and `reap` may delete it at any time."""
    log = _journal(experiment)
    if log is not None and (late := clock.wall() - log.spec.expires) >= 0:
        name = log.spec.name
        raise UserError(
            f"the cluster {name} expired {duration(late)} ago",
            hint=f"python -m mlbench.cluster down {name}, and up with more hours=",
        )


def _journal(experiment: Experiment) -> Journal | None:
    billed = [log for log in journals()[0] if log.state == "up" and log.spec.billed]
    context = (cluster_config(experiment).context or current_context()) if billed else None
    return next((log for log in billed if provider(log.spec).context(log.spec) == context), None)

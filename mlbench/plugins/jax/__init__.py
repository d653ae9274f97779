"""Run framework=jax: tasks whose steps are XLA's programs.

This package does not import jax. The workers' modules do.
"""

from collections.abc import Iterator

from mlbench.config import libraries, plugins
from mlbench.config.experiment import Experiment

BACKENDS = ("gloo", "nccl")  # those of jax


def require() -> None:
    """Raise UserError if jax is not installed."""
    libraries.require("jax", user="framework=jax")


def faults(experiment: Experiment) -> Iterator[str]:
    """Yield a sentence for each value that no run under jax can have."""
    task, sync, backend = experiment.task, experiment.sync, experiment.backend
    if sync.name != "ddp":
        yield f"sync={sync.name} is torch's: framework=jax averages gradients as sync=ddp does"
    elif sync.model_dump() != plugins.values(plugins.own_conf() / "sync" / "ddp.yaml"):
        yield "sync.bucket_cap_mb is torch's: framework=jax leaves the size of messages to XLA"
    if backend.name not in BACKENDS:
        yield f"backend={backend.name} is torch's: framework=jax has {', '.join(BACKENDS)}"
    if backend.name == "gloo" and backend.sockets is not None:
        yield f"backend.sockets={backend.sockets} is torch's: framework=jax leaves it to its gloo"
    if getattr(task, "precision", None) not in (None, "fp32"):
        yield f"task.precision={getattr(task, 'precision', None)}: framework=jax computes in fp32"
    if experiment.compile:
        yield f"compile={experiment.compile} is torch's: framework=jax compiles every step"
    if experiment.profile:
        yield f"profile={experiment.profile} records torch's operators: leave it out with framework=jax"

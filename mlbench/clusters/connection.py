"""How a command becomes a driver of a cluster's Ray: `connect` for one run, `join` for a sweep.

A cluster is a module of this folder, found by its name:

- `connect(experiment)`: a context manager that makes this process a driver of the cluster's Ray and yields
  the address at which workers reach it. What it started ends with the block.
- `shares_files`: whether workers see the driver's files, so that the driver can prepare data for them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from mlbench.clusters import ray_env
from mlbench.experiment import plugins
from mlbench.experiment.config import Experiment


@dataclass(frozen=True)
class Connection:
    """A Ray cluster that this process is a driver of.

    - resources: what one worker reserves, e.g. {"CPU": 1, "GPU": 1}.
    - placement: Ray's strategy for the workers' nodes, PACK or STRICT_SPREAD.
    - threads: compute threads of a worker.
    - oversubscribed: more threads than CPUs, so the times are not those of this many workers.
    - host: the address at which workers reach this process.
    """

    resources: dict[str, float]
    placement: str
    threads: int
    oversubscribed: bool
    host: str
    job_id: str
    node_ids: list[str]


def load(name: str) -> ModuleType:
    """Return the module of the cluster `name`."""
    return plugins.load("cluster", name)


def shares_files(experiment: Experiment) -> bool:
    """Return whether the workers see this process's files."""
    return load(experiment.cluster.name).shares_files


@contextmanager
def connect(experiment: Experiment) -> Iterator[Connection]:
    """Join the cluster and reserve room for the workers; UserError where they do not fit."""
    with join(experiment) as host:
        from mlbench.clusters import placement

        yield placement.reserve(experiment, host=host)


@contextmanager
def join(experiment: Experiment) -> Iterator[str]:
    """Make this process a driver of the cluster's Ray; yield the address at which workers reach it."""
    ray_env.disable_background_work()
    ray_env.configure_train(timeout_s=experiment.backend.timeout_s)
    with load(experiment.cluster.name).connect(experiment) as host:
        yield host


def import_trainer() -> None:
    """Import Ray's trainer (2 s) in a thread: half of Ray's start is waiting for its servers."""
    import ray  # noqa: F401  (before the thread, so that no two threads import it at once)

    threading.Thread(target=import_module, args=("ray.train.torch",), daemon=True).start()

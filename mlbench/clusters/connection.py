"""Where Ray runs: `connect` yields a cluster with room for the experiment, or says what would fit."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from mlbench.clusters import persistent
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


@contextmanager
def connect(experiment: Experiment) -> Iterator[Connection]:
    """Join the cluster and see that the workers fit; what was started here is stopped at the end."""
    _secure(experiment)
    import ray  # noqa: F401  (before the thread, so that no two threads import it at once)

    # Half of Ray's start is waiting for its servers; the trainer's import (2 s) fits in there.
    threading.Thread(target=import_module, args=("ray.train.torch",), daemon=True).start()
    with join(experiment) as host:
        yield room_for(experiment, host=host)


@contextmanager
def join(experiment: Experiment) -> Iterator[str]:
    """Make this process a driver of the cluster's Ray; yield the address at which workers reach it."""
    _secure(experiment)
    module = import_module(f"mlbench.clusters.{experiment.cluster.name}")
    with module.join(experiment) as host:
        yield host


def _secure(experiment: Experiment) -> None:
    if experiment.cluster.name == "local":
        persistent.secure()  # before anything imports ray, which reads the mode only then


def room_for(experiment: Experiment, *, host: str) -> Connection:
    """Return what a worker reserves on the cluster that was joined; UserError where they do not fit."""
    from mlbench.clusters import placement as room

    return room.reserve(experiment, host=host)

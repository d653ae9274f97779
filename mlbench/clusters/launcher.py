"""No Ray: the processes of a run are started by a launcher of the user's own, such as torchrun."""

from collections.abc import Iterator
from contextlib import contextmanager

from mlbench.config.errors import UserError
from mlbench.config.experiment import Cluster, Experiment

shares_files = True


class Config(Cluster):
    """A cluster's fields and this one's own."""

    exclusive: bool


@contextmanager
def connect(experiment: Experiment) -> Iterator[str]:
    """Raise UserError: there is no Ray to join."""
    raise UserError(
        "cluster=launcher has no Ray", hint="python -m mlbench.measure -- torchrun ... measures a launcher"
    )
    yield

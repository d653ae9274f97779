"""A run as a RayJob."""

from collections.abc import Sequence
from typing import Any

from mlbench.experiment.config import Experiment
from mlbench.experiment.errors import UserError


def submit(experiment: Experiment, overrides: Sequence[str], *, seed: int) -> Any:
    raise UserError("cluster=kuberay cannot submit yet", hint="--cfg manifest | kubectl apply -f -")

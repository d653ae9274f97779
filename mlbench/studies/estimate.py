"""How long a run will take and what it will cost, and what that is known from."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from mlbench.experiment import cost, identity
from mlbench.experiment.config import Experiment
from mlbench.experiment.format import counted
from mlbench.experiment.record import FINISHED, Record
from mlbench.tasks import registry


@dataclass(frozen=True)
class Estimate:
    """One run of an experiment.

    - seconds: of the whole command, start-up included; None where nothing is known.
    - usd: at the on-demand price of the hardware profile; None without a price or without seconds.
    - basis: what the seconds are known from, as a phrase.
    """

    seconds: float | None
    usd: float | None
    basis: str


def estimate(experiment: Experiment, runs: Iterable[Record]) -> Estimate:
    """Return the estimate of a run from `runs` measured here.

    They are the runs of the same configuration (their median); without any, those of the task at this scale
    (the longest, as for the limit of a study); without any, what the task's page says of its mini scale.
    """
    task, key = experiment.task, identity.key(experiment)
    ours = (one for one in runs if one.source == "mlbench" and not one.imported)
    finished = [one for one in ours if one.status in FINISHED]
    same = [one.wall for one in finished if one.key == key]
    alike = [
        one.wall
        for one in finished
        if one.experiment.task.name == task.name and one.experiment.scale == experiment.scale
    ]
    if same:
        return _priced(experiment, median(same), f"the median of {counted(len(same), 'earlier run')}")
    if alike:
        basis = f"the longest of {counted(len(alike), 'earlier run')} of {task.name} with other settings"
        return _priced(experiment, max(alike), basis)
    expected = registry.expected(task.name) if experiment.scale == "mini" else None
    if expected is None:
        return Estimate(None, None, f"nothing: no run of {task.name} {experiment.scale} is known here")
    return _priced(experiment, expected["seconds"], expected["source"])


def _priced(experiment: Experiment, seconds: float, basis: str) -> Estimate:
    price = experiment.hardware.price
    if price is None:
        return Estimate(seconds, None, basis)
    count = cost.nodes(experiment.hardware, experiment.workers)
    return Estimate(seconds, cost.usd(seconds, count, price.usd_per_hour), basis)

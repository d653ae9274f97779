"""How long a run will take and what it will cost, and what that is known from."""

from collections.abc import Iterable, Mapping, Sequence
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

    They are the runs of the same configuration (their median); without any, those of the task on this data
    set (the longest, as for the limit of a study); without any, what the task's page says of its mini scale.
    """
    return estimates([experiment], runs)[0]


def estimates(experiments: Iterable[Experiment], runs: Iterable[Record]) -> list[Estimate]:
    """Return the estimate of a run of each experiment."""
    by_key: dict[str, list[float]] = {}  # s
    by_task: dict[tuple[str, str, str], list[float]] = {}
    for run in runs:
        if run.source == "mlbench" and not run.imported and run.status in FINISHED:
            by_key.setdefault(run.key, []).append(run.wall)
            by_task.setdefault(_data(run.experiment), []).append(run.wall)
    longest = {task: (max(walls), len(walls)) for task, walls in by_task.items()}
    return [_estimate(one, by_key.get(identity.key(one), ()), longest) for one in experiments]


def _estimate(
    experiment: Experiment, same: Sequence[float], longest: Mapping[tuple[str, str, str], tuple[float, int]]
) -> Estimate:
    task, scale = experiment.task, experiment.scale
    if same:
        return _priced(experiment, median(same), f"the median of {counted(len(same), 'earlier run')}")
    if _data(experiment) in longest:
        seconds, count = longest[_data(experiment)]
        basis = f"the longest of {counted(count, 'earlier run')} of {task.name} with other settings"
        return _priced(experiment, seconds, basis)
    expected = registry.expected(task.name) if scale == "mini" else None
    if expected is None or expected["dataset"] != task.dataset:
        other = f" on {task.dataset}" if expected else ""
        return Estimate(None, None, f"nothing: no run of {task.name} {scale}{other} is known here")
    return _priced(experiment, expected["seconds"], expected["source"])


def _data(experiment: Experiment) -> tuple[str, str, str]:
    """Return task, scale and data set: runs on other data say nothing of the time."""
    return experiment.task.name, experiment.scale, experiment.task.dataset


def _priced(experiment: Experiment, seconds: float, basis: str) -> Estimate:
    price = experiment.hardware.price
    if price is None:
        return Estimate(seconds, None, basis)
    count = cost.nodes(experiment.hardware, experiment.workers)
    return Estimate(seconds, cost.usd(seconds, count, price.usd_per_hour), basis)

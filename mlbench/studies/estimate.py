"""How long a run will take and what it will cost, and what that is known from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from mlbench.config import compose, identity
from mlbench.config.experiment import Experiment
from mlbench.record import cost
from mlbench.record.format import counted
from mlbench.record.record import FINISHED, Record
from mlbench.tasks import registry

NODES = ("workers", "backend", "hardware", "cluster", "launcher", "framework", "phase_timing")
MOST_FIELDS = 4  # in a sentence


@dataclass(frozen=True)
class RunEstimate:
    """One run of an experiment.

    - seconds: of the whole command, start-up included. None if nothing is known.
    - usd: at the on-demand price, as max_usd counts it. None without a price or without seconds.
    - basis: what the seconds are known from, as a phrase.
    """

    seconds: float | None
    usd: float | None
    basis: str


def estimates(experiments: Iterable[Experiment], runs: Iterable[Record]) -> list[RunEstimate]:
    """Return the estimate of a run of each experiment from `runs` measured here.

    They are the runs of the same configuration (their median). Without any, those of the same training with
    other workers, backend or hardware (the longest, as for the limit of a study). Without any, the time that
    the task's page gives for its mini scale, if nothing else of the training differs.
    """
    by_key: dict[str, list[float]] = {}  # s
    by_training: dict[str, list[float]] = {}
    for run in runs:
        if run.source == "mlbench" and not run.imported and run.status in FINISHED:
            by_key.setdefault(run.key, []).append(run.wall)
            by_training.setdefault(str(_training(run.experiment)), []).append(run.wall)
    longest = {training: (max(walls), len(walls)) for training, walls in by_training.items()}
    usual = cache(lambda task: _training(compose.compose([f"task={task}"])))
    return [
        _estimate(experiment, by_key.get(identity.key(experiment), ()), longest, usual)
        for experiment in experiments
    ]


def _estimate(
    experiment: Experiment,
    same: Sequence[float],
    longest: Mapping[str, tuple[float, int]],
    usual: Callable[[str], Mapping[str, Any]],
) -> RunEstimate:
    task, scale = experiment.task, experiment.scale
    if same:
        return _priced(experiment, median(same), f"the median of {counted(len(same), 'earlier run')}")
    if (training := _training(experiment)) and str(training) in longest:
        seconds, count = longest[str(training)]
        basis = f"the longest of {counted(count, 'earlier run')} of {task.name} with other workers or nodes"
        return _priced(experiment, seconds, basis)
    expected = registry.expected(task.name) if scale == "mini" else None
    unknown = f"no run of {task.name} {scale}"
    if expected is None:
        return RunEstimate(None, None, f"{unknown} with these settings is recorded")
    default = usual(task.name)
    other = [f"{name}={value}" for name, value in training.items() if default.get(name) != value]
    if other:
        more = ", ..." if len(other) > MOST_FIELDS else ""
        return RunEstimate(None, None, f"{unknown} with {', '.join(other[:MOST_FIELDS])}{more} is recorded")
    return _priced(experiment, expected["seconds"], expected["source"])


def _training(experiment: Experiment) -> dict[str, Any]:
    """Return what decides how long a run trains, except who computes it: its identity without the nodes."""
    fields = identity.identity(experiment.plain())
    return {name: value for name, value in fields.items() if name.partition(".")[0] not in NODES}


def _priced(experiment: Experiment, seconds: float, basis: str) -> RunEstimate:
    rate = cost.usd_per_hour(experiment)
    return RunEstimate(seconds, None if rate is None else cost.usd(seconds, 1, rate), basis)

"""Reference convergence points of runs and of the shipped tasks: which runs they are for."""

from collections.abc import Iterable, Sequence
from typing import Any

from mlbench.analysis import rcp
from mlbench.config import identity
from mlbench.config.errors import UserError
from mlbench.config.experiment import TrainingConfig
from mlbench.record import attempts
from mlbench.record.record import Record
from mlbench.tasks import registry


def benchmark(experiment: dict[str, Any]) -> str:
    """Return MLPerf's name of an official task that it has, else ours, e.g. logreg or gnmt_mini."""
    name, scale = experiment["task"]["name"], experiment["scale"]
    mlperf = registry.mlperf(name)
    if scale != "official":
        return f"{name}_{scale}"
    return mlperf.BENCHMARK if mlperf else name


def hyperparameters(record: Record) -> dict[str, Any]:
    """Return what decides how many epochs a run needs: the global batch size, the task's fields, the goal.

    Empty for tasks without epochs.
    """
    experiment = record.model_dump(mode="json")["experiment"]
    config = registry.load(experiment["task"]["name"]).Config.model_validate(experiment["task"])
    if not isinstance(config, TrainingConfig):
        return {}
    return fields(config, experiment, workers=record.workers)


def fields(config: TrainingConfig, experiment: dict[str, Any], *, workers: int) -> dict[str, Any]:
    """Return the hyper-parameters of a resolved experiment. Batch and micro-batch are in the global one."""
    left_out = (
        "task.batch_size",
        "task.time_budget_s",
        "task.goals",
        *(f"task.{name}" for name in config.FREE),
    )
    return {
        "global_batch_size": config.global_batch(workers),
        "goal": target(experiment),
        **{
            name: value
            for name, value in identity.identity(experiment).items()
            if name.startswith("task.") and not name.startswith(tuple(left_out))
        },
    }


def target(experiment: dict[str, Any]) -> float | None:
    """Return the number that the goal is, in the metric's unit. None without a goal."""
    goals, goal = experiment["task"]["goals"], experiment["goal"]
    if isinstance(goal, str):
        return None if goal == "none" or goals is None else float(goals[goal])
    return float(goal)


def files(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Return MLPerf's RCP files of a study by benchmark: {"gnmt_mini": {"gnmt_mini_ref_64": {...}}}.

    Every seed counts once. Points with fewer than three runs that reached the goal are left out.
    """
    groups: dict[str, list[Record]] = {}
    for run in attempts.results(records):
        if run.goal is not None and (values := hyperparameters(run)):
            groups.setdefault(repr(sorted(values.items())), []).append(run)
    benchmarks: dict[str, dict[str, Any]] = {}
    for runs in groups.values():
        reached = [run for run in runs if run.status == "goal_reached"]
        if len(reached) < rcp.FEWEST:
            continue
        experiment = runs[0].model_dump(mode="json")["experiment"]
        name, values = benchmark(experiment), hyperparameters(runs[0])
        points = benchmarks.setdefault(name, {})
        label = f"{name}_ref_{values['global_batch_size']}"
        label += f"_{len(points)}" if label in points else ""
        points[label] = rcp.record(
            name,
            [run.epochs for run in reached],
            hyperparameters=values,
            missed=len(runs) - len(reached),
            when=f"mlbench {runs[0].mlbench}, {max(run.ended_at for run in runs)[:10]}",
            platform=", ".join(sorted({run.experiment.hardware.name for run in runs})),
        )
    return benchmarks


def warning(runs: Sequence[Record]) -> str | None:
    """Return why the runs of one point, or a single run, converged too fast to be true, or None otherwise."""
    reached = [run for run in runs if run.status == "goal_reached"]
    if not reached or reached[0].source != "mlbench":
        return None
    try:
        references = registry.reference_convergence(reached[0].experiment.task.name)
        values = hyperparameters(reached[0])
    except (UserError, ValueError):  # another version's fields, or a task that is not installed here
        return None
    return rcp.implausible([run.epochs for run in reached], hyperparameters=values, references=references)

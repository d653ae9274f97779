"""mlbench's own tasks keep the contract that ships for those of others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import TrainingConfig
from mlbench.contract import by_hand
from mlbench.contract.ranks import RankPool, mini_worker
from mlbench.contract.test_task import *  # noqa: F403
from mlbench.contract.test_task import Steps
from mlbench.studies import spec
from mlbench.tasks import registry
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker

pytestmark = pytest.mark.slow

SCALING = [
    overrides for grid, _ in spec.named("scaling", output_settings={}).grids for overrides in grid.points
]


@pytest.mark.parametrize("overrides", SCALING, ids=" ".join)
def test_every_point_of_the_scaling_study_has_an_update_for_its_last_worker(
    overrides: tuple[str, ...], data_root: Path
) -> None:
    """The mini Transformer's steps cannot be shared out to 32 workers, which the study asked for."""
    experiment = compose(overrides)
    worker = Worker(rank=experiment.workers - 1, world_size=experiment.workers)
    setup = registry.build(experiment.task, mini_worker(worker, data_root))
    batch = next(iter(setup.steps(setup.load(), 0)))[0]
    setup.close()
    assert setup.samples(batch) > 0


def steps_validated_twice(
    worker: Worker, task: str, overrides: tuple[str, ...], root: Path
) -> by_hand.Result:
    """Return the steps of a task, whose validation goes through the model twice."""

    def build(config: TrainingConfig, worker: Worker) -> TrainingSetup:
        setup = built(config, worker)
        return replace(setup, validate=lambda *given: setup.validate(*given) and setup.validate(*given))

    built = registry.build
    with patch.object(registry, "build", build):
        return by_hand.steps(worker, task, overrides, root, None)


def test_the_parts_of_every_model_can_be_units_of_fsdp(
    name: str, data_root: Path, trained: list[str], two: RankPool, strategies: Callable[[str], list[Steps]]
) -> None:
    """Also where units give their weights back after each forward, and validate several batches."""
    overrides = ("sync=fsdp", "sync.unit=child", "sync.reshard_after_forward=true")
    ranks = two.run(steps_validated_twice, name, overrides, data_root)
    for result, steps in zip(ranks, strategies(name), strict=True):
        assert not by_hand.different(result, steps["gradients",])
        assert result.metrics == pytest.approx(steps["sync=fsdp",].metrics, rel=1e-3)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["task=allreduce", "workers=1"], "at least 2 workers"),
        (["task=resnet50", "workers=8193", "scale=official"], "8193 workers share a global batch"),
        (["task=resnet50", "division=open", "task.micro_batch=5"], "task.micro_batch=5 does not divide"),
        (["task=transformer", "division=open", "task.chunks=32"], "32 padded tokens do not hold 8 sentences"),
        (["task=gnmt", "division=open", "task.global_batch_size=32000"], "are less than one step of 32,000"),
    ],
)
def test_what_cannot_run_is_refused_before_any_worker_starts(
    data_root: Path, overrides: list[str], sentence: str
) -> None:
    experiment = compose([*overrides, f"data_root={data_root}"])
    folder = None
    if experiment.scale == "mini":
        folder = registry.load(experiment.task.name).prepare(experiment.task, data_root)
    with pytest.raises(UserError, match=sentence):
        registry.check(experiment.task, workers=experiment.workers, folder=folder)

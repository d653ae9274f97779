"""mlbench's own tasks keep the contract that ships for those of others."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.contract import by_hand
from mlbench.contract.ranks import RankPool, mini_worker
from mlbench.contract.test_task import *  # noqa: F403
from mlbench.contract.test_task import Steps
from mlbench.studies import spec
from mlbench.tasks import registry
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


def test_gnmts_children_can_be_units_of_fsdp(
    data_root: Path, two: RankPool, strategies: Callable[[str], list[Steps]]
) -> None:
    overrides = ("sync=fsdp", "sync.unit=child")
    for result, steps in zip(
        two.run(by_hand.steps, "gnmt", overrides, data_root, None), strategies("gnmt"), strict=True
    ):
        assert not by_hand.different(result, steps["sync=fsdp",])


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

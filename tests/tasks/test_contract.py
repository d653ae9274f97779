"""mlbench's own tasks keep the contract that ships for those of others.

Every strategy trains two of them. What each strategy computes is held to NumPy (tests/training/test_sync.py)
and to weights of every kind (mlbench/contract/test_sync.py), so the other models take their steps with ddp
and fsdp alone, which change the model itself.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.contract import by_hand, test_task
from mlbench.contract.ranks import RankPool, mini_worker, run_ranks
from mlbench.contract.test_task import *  # noqa: F403
from mlbench.studies import spec
from mlbench.tasks import registry
from mlbench.tasks.translation import torch as translating
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


EVERY_STRATEGY = ["logreg", "awdlstm"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if {"name", "strategies"} <= set(metafunc.fixturenames):
        metafunc.parametrize("name", EVERY_STRATEGY)
    else:
        test_task.pytest_generate_tests(metafunc)


# test_validations.py holds the seed to the start, the order and the batches of each task.
del test_the_same_seed_gives_the_same_loss  # noqa: F821


def without_search(worker: Worker, function: Callable[..., Any], *arguments: Any) -> Any:
    """Take every source as its translation, as a search takes most of the time.

    Which data are read counts here, and not what a model makes of them. FSDP's units validate with a search.
    """
    with patch.object(translating, "search", lambda model, batch, *, config: batch.source):
        return function(worker, *arguments)


@pytest.fixture(scope="module")
def alone(data_root: Path, trained: list[str]) -> dict[str, Any]:
    return run_ranks(without_search, 1, test_task.observe, trained, data_root, False)[0]


@pytest.fixture(scope="module")
def pair(data_root: Path, trained: list[str], two: RankPool) -> list[dict[str, Any]]:
    return two.run(without_search, test_task.observe, trained, data_root, True)


def test_no_content_of_the_data_is_read_before_the_clock_runs(
    data_root: Path, tmp_path: Path, trained: list[str]
) -> None:
    """Both translation tasks read their data by the same code."""
    trained = [name for name in trained if name != "transformer"]
    assert run_ranks(without_search, 1, test_task.read_too_early, trained, data_root, tmp_path) == [[]]


FSDP = ("sync=fsdp", "sync.unit=child", "sync.reshard_after_forward=true")


def steps_of_models(worker: Worker, task: str, root: Path) -> list[by_hand.Result]:
    """Return the steps of a task by plain averages, with ddp, and with fsdp, which validates the last."""
    expected = by_hand.steps(worker, task, (), root, "gradients")
    return [expected, *(by_hand.steps(worker, task, words, root, None) for words in (("sync=ddp",), FSDP))]


def test_every_model_takes_the_steps_of_averaged_gradients_with_ddp_and_in_units_of_fsdp(
    name: str, data_root: Path, trained: list[str], two: RankPool
) -> None:
    first, second = two.run(steps_of_models, name, data_root)
    for expected, *results in (first, second):
        assert not any(by_hand.different(result, expected) for result in results)
    assert first[-1].metrics == second[-1].metrics


@pytest.mark.parametrize(
    "overrides",
    [
        ["task=allreduce", "workers=1"],
        ["task=resnet50", "workers=8193", "scale=official"],
        ["task=resnet50", "division=open", "task.micro_batch=5"],
        ["task=transformer", "division=open", "task.chunks=32"],
        ["task=gnmt", "division=open", "task.global_batch_size=32000"],
        ["task=gpt", "workers=3"],
        ["task=gpt", "division=open", "task.heads=5"],
    ],
)
def test_what_cannot_run_is_refused_before_any_worker_starts(
    data_root: Path, overrides: list[str], as_stored: Any
) -> None:
    experiment = compose([*overrides, f"data_root={data_root}"])
    folder = None
    if experiment.scale == "mini":
        folder = registry.load(experiment.task.name).prepare(experiment.task, data_root)
    with pytest.raises(UserError, check=as_stored):
        registry.check(experiment.task, workers=experiment.workers, folder=folder)

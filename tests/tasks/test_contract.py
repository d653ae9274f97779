"""mlbench's own tasks keep the contract that ships for those of others."""

from pathlib import Path

import pytest

from mlbench.contract.ranks import mini_worker
from mlbench.contract.test_task import *  # noqa: F403
from mlbench.experiment.config import compose
from mlbench.studies import spec
from mlbench.tasks import registry
from mlbench.training.worker import Worker

SCALING = [words for grid, _ in spec.named("scaling", output_settings={}).grids for words in grid.points]


@pytest.mark.parametrize("words", SCALING, ids=" ".join)
def test_every_point_of_the_scaling_study_has_an_update_for_its_last_worker(
    words: tuple[str, ...], data_root: Path
) -> None:
    """The mini Transformer's steps cannot be shared out to 32 workers, which the study asked for."""
    experiment = compose(words)
    worker = Worker(rank=experiment.workers - 1, world_size=experiment.workers)
    setup = registry.build(experiment.task, mini_worker(worker, data_root))
    batch = next(iter(setup.steps(setup.load(), 0)))[0]
    setup.close()
    assert setup.samples(batch) > 0

"""The learning rates that each task trains with on k workers, worked out by hand from conf/ and the recipes.

The schedules themselves are tested beside mlbench/training/schedules.py; here, that tasks use them.
"""

import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from ranks import mini_worker

from mlbench.config.compose import compose
from mlbench.tasks import registry
from mlbench.tasks.logreg.torch import reference_alpha
from mlbench.training.schedules import late_steps
from mlbench.training.worker import Worker


def rates(overrides: list[str], workers: int, steps: list[int], root: Path) -> list[float]:
    """Return the rates of these steps on one of k workers; nothing is trained."""
    task = compose(overrides).task
    setup = registry.build(task, mini_worker(Worker(world_size=workers), root))
    setup.load()
    values = []
    for step in steps:
        setup.before_step(step)
        values.append(setup.optimizer.param_groups[0]["lr"])
    setup.close()
    return values


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_logreg_s_rate_is_k_times_one_worker_s(workers: int, data_root: Path) -> None:
    assert rates(["task=logreg"], workers, [0, 999], data_root) == [16.0 * workers] * 2


# MLBench 2018, table of alpha; between its counts that of the largest which is not above k.
ALPHAS = {1: 200, 2: 400, 3: 400, 4: 600, 7: 600, 8: 700, 15: 700, 16: 800, 64: 800}


@pytest.mark.parametrize(("workers", "alpha"), ALPHAS.items())
def test_logreg_2018_s_alpha_is_the_study_s(workers: int, alpha: float) -> None:
    task = compose(["task=logreg", "task.recipe=mlbench2018"]).task
    assert reference_alpha(task, workers) == alpha  # type: ignore[arg-type]


@pytest.mark.parametrize(("workers", "epochs"), [(1, 0), (2, 1), (4, 2)])
def test_resnet20_warms_up_over_epochs_to_k_times_the_rate(
    workers: int, epochs: int, data_root: Path
) -> None:
    task = compose(["task=resnet20"]).task
    setup = registry.build(task, mini_worker(Worker(world_size=workers), data_root))
    an_epoch = len(setup.steps(setup.load(), 0))
    end = epochs * an_epoch
    values = rates(["task=resnet20"], workers, [0, end // 2, max(0, end - 1), end, end + 9], data_root)
    assert values[0] == pytest.approx(0.1)
    assert values[3] == values[4] == pytest.approx(0.1 * workers)
    if epochs:
        assert values[1] == pytest.approx(0.1 * (1 + (workers - 1) * (end // 2) / end))
        assert values[2] < values[3]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2])
def test_resnet50_s_rate_is_that_of_256_images_times_the_global_batch(workers: int, data_root: Path) -> None:
    """1.6 for 256 images, 32 a worker; linear over two epochs, whose last step has it all."""
    task = compose(["task=resnet50"]).task
    setup = registry.build(task, mini_worker(Worker(world_size=workers), data_root))
    end = 2 * len(setup.steps(setup.load(), 0))
    setup.close()
    full = 1.6 * 32 * workers / 256
    values = rates(["task=resnet50"], workers, [0, end - 1], data_root)
    assert values == pytest.approx([full / end, full])


@pytest.mark.parametrize("total", [1000, 1020, 1340, 2680])
def test_late_steps_fall_at_the_exact_shares(total: int) -> None:
    """In binary 0.4 + 0.05 i is often a little more than it is in decimals, which would be a step late."""
    factor = late_steps(0.5, total=total, start=0.4, every=0.05, times=4)
    falls = [step for step in range(1, total) if factor(step) < factor(step - 1)]
    assert falls == [math.ceil(total * (Fraction(4, 10) + Fraction(5, 100) * i)) for i in range(4)]


def test_seeds_and_epochs_that_are_neighbours_draw_different_numbers() -> None:
    """A seed plus an epoch would give seed 1 in epoch 0 what seed 0 has in epoch 1."""
    draws = {
        (seed, *numbers): Worker(seed=seed).generator(*numbers).initial_seed()
        for seed in range(20)
        for numbers in [(), *((n,) for n in range(20)), *((n, m) for n in range(5) for m in range(5))]
    }
    assert len(set(draws.values())) == len(draws)
    first = torch.randperm(1000, generator=Worker(seed=3).generator(4))
    assert torch.equal(first, torch.randperm(1000, generator=Worker(seed=3, rank=1).generator(4)))

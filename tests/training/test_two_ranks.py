"""What the loop promises of several ranks, each beside an independent computation, with gloo processes."""

from typing import Any
from unittest import mock

import pytest
import torch
from ranks import run_ranks
from test_timer import Clock
from torch import nn

from mlbench.training import reporter
from mlbench.training.loop import train
from mlbench.training.setup import TrainingSetup
from mlbench.training.timer import PhaseTimer
from mlbench.training.worker import Worker

STEPS, BATCH, FEATURES = 6, 8, 3
LATE_S = 1000.0  # s that rank 0 waits for rank 1 before the clock starts


def inputs(rank: int) -> torch.Tensor:
    """Return a rank's batches, [STEPS, BATCH, FEATURES], with a mean and a deviation of its own."""
    drawn = torch.randn(STEPS, BATCH, FEATURES, generator=torch.Generator().manual_seed(rank))
    return (drawn * (1 + 2 * rank) + 5 * rank).double()


def setup_of(model: nn.Module, rank: int, **changes: Any) -> TrainingSetup:
    values: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "epochs": 1,
        "steps": lambda _, __: [[batch] for batch in inputs(rank)],
        "forward": lambda net, x: net(x),
        "loss": lambda output, _: output.square().mean(),
        "validate": lambda *_: {"loss": 0.0},
        "samples": len,
    }
    return TrainingSetup(**values | changes)


def statistics(worker: Worker) -> tuple[list[float], list[float]]:
    """Train a batch norm and return the running statistics that the validation saw."""
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(FEATURES).double()
    seen: list[list[float]] = []

    def validate(model: nn.Module, _: Any) -> dict[str, float]:
        assert not model.training
        seen.extend([norm.running_mean.tolist(), norm.running_var.tolist()])  # type: ignore[union-attr]
        return {"loss": 0.0}

    model = nn.Sequential(norm, nn.Linear(FEATURES, 1).double())
    train(setup_of(model, worker.rank, validate=validate), worker)
    return seen[0], seen[1]


def test_batch_norm_is_validated_with_the_mean_of_what_each_rank_saw_for_itself() -> None:
    means, variances = [], []
    for rank in (0, 1):
        mean, variance = torch.zeros(FEATURES).double(), torch.ones(FEATURES).double()
        for batch in inputs(rank):
            mean = 0.9 * mean + 0.1 * batch.mean(0)
            variance = 0.9 * variance + 0.1 * batch.var(0, unbiased=True)
        means.append(mean)
        variances.append(variance)
    for found_mean, found_variance in run_ranks(statistics, 2):
        assert found_mean == pytest.approx(((means[0] + means[1]) / 2).tolist(), rel=1e-9)
        assert found_variance == pytest.approx(((variances[0] + variances[1]) / 2).tolist(), rel=1e-9)


def clocked(worker: Worker) -> tuple[float, float]:
    """Return the last validation's time and all that passed on this rank's clock."""
    clock, barrier = Clock(), worker.barrier
    worker.timer = PhaseTimer(now=clock, wall_now=clock, clock_id="here")
    begun = clock.now

    def wait() -> None:
        clock.run(LATE_S * (worker.rank == 0))
        barrier()

    def validate(*_: Any) -> dict[str, float]:
        clock.run(20.0 + worker.rank)
        return {"loss": 0.0}

    setup = setup_of(
        nn.Linear(FEATURES, 1).double(),
        worker.rank,
        load=lambda: clock.run(3.0 + 300.0 * worker.rank),
        validate=validate,
    )
    with mock.patch.object(worker, "barrier", wait):
        result = train(setup, worker)
    assert result.elapsed == result.validations[-1]["elapsed"]
    return result.elapsed, clock.now - begun


def test_the_clock_starts_when_all_ranks_are_there_and_is_rank_0s() -> None:
    """Not a sum over ranks, and without the wait for the last rank to begin."""
    assert run_ranks(clocked, 2) == [(23.0, LATE_S + 23.0), (23.0, 324.0)]


def sums(worker: Worker) -> list[float]:
    return worker.sum([2.0**24 + worker.rank, 0.1]).tolist()


def test_sums_over_ranks_are_exact_in_float64() -> None:
    """2^25 + 1 is no float32, and neither is a tenth."""
    assert run_ranks(sums, 2) == [[2.0**25 + 1, 0.2]] * 2


def stamped(worker: Worker) -> tuple[list[int], int]:
    """Return which of 1,200 short steps this rank stamped, and one of how many; rank 1's are slower."""
    clock = Clock()
    worker.timer = PhaseTimer(now=clock, wall_now=clock, clock_id="here")
    places: list[int] = []
    steps_ended: list[int] = []
    end_step = worker.timer.end_step

    def remember(samples: int) -> None:
        steps_ended.append(samples)
        if worker.timer.stamping:
            places.append(len(steps_ended))
        end_step(samples)

    worker.timer.end_step = remember

    def forward(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        clock.run(2e-4 * (1 + 2 * worker.rank))
        return net(x)

    steps: Any = [[torch.ones(1, FEATURES).double()]] * 600
    setup = setup_of(
        nn.Linear(FEATURES, 1).double(), worker.rank, steps=lambda *_: steps, forward=forward, epochs=2
    )
    # It compares step by step, and would wait for ever.
    with mock.patch.object(reporter.arrivals, "split"):
        train(setup, worker)
    return places, worker.timer.stamp_every


@pytest.mark.slow
def test_ranks_stamp_the_same_steps_however_fast_each_is() -> None:
    """Or arrivals of different steps would be compared: of 0.2 and 0.6 ms a step, 0.4 ms decide."""
    (places, every), (others, same) = run_ranks(stamped, 2)
    assert every == same == 10
    assert places == others and 50 + 0.07 * 1150 < len(places) < 50 + 0.14 * 1150

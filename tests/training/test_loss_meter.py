"""The mean of a run's losses, in float32."""

import torch

from mlbench.training.loss_meter import LossMeter


def mean(losses: list[float], *, heartbeats: set[int]) -> float:
    meter = LossMeter(torch.device("cpu"))
    for step, loss in enumerate(losses, 1):
        meter.add(torch.tensor(loss))
        meter.end_step(None, 1)
        if step in heartbeats:
            meter.mean()
        if step % 500 == 0:
            meter.fold()
    return meter.mean()


def test_a_heartbeat_at_any_step_changes_no_bit_of_the_loss() -> None:
    losses = torch.rand(1200, generator=torch.Generator().manual_seed(1)).tolist()
    assert len({mean(losses, heartbeats=set(range(7, 1200, every))) for every in (3, 50, 333, 9999)}) == 1


def test_the_mean_is_that_of_all_losses_and_reset_forgets_them() -> None:
    meter = LossMeter(torch.device("cpu"))
    for loss in (8.0, 2.0, 4.0, 6.0):  # exact in any order
        meter.add(torch.tensor(loss))
        if loss != 8.0:
            meter.end_step(None, 1)
    meter.fold()
    assert (meter.total(), meter.steps()) == (20.0, 3)
    meter.reset()
    assert meter.mean() == 0.0

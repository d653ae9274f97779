"""The contract of a sync strategy: --sync NAME, or every strategy that is found."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from mlbench.config import plugins
from mlbench.config.compose import compose
from mlbench.contract.by_hand import Averages, average, tensors
from mlbench.contract.options import import_without, names
from mlbench.contract.ranks import RankPool
from mlbench.training.sync import strategy
from mlbench.training.worker import Worker

STEPS = 6


@pytest.fixture(scope="module")
def pair() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", names(metafunc.config, "sync"))


class Varied(nn.Module):
    """Weights of every kind that tasks have: channels last, a scalar, tied, frozen, unused, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm2d(8)  # averages to combine, and a whole number
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.first, self.second = (nn.Linear(8, 8, bias=False) for _ in range(2))
        self.second.weight = self.first.weight
        self.last = nn.Linear(8, 1).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.norm(self.convolution(images)).relu().mean((2, 3))
        return self.last(self.second(self.first(features).tanh()) * self.scale)


def trained(worker: Worker, overrides: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    """Train a small model, two micro-batches a step, on data that differs by rank. Return what is validated.

    Without words gradients are averaged one by one here, which is what sync=ddp has to come to.
    """
    torch.manual_seed(0)
    model = Varied().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    if overrides:
        worker = replace(worker, sync=compose([*overrides, "division=open"]).sync)
        sync = strategy.synchronise(model, optimizer, worker)
    else:
        sync = Averages(model, "gradients")
    data = torch.Generator().manual_seed(worker.rank)
    for step in range(STEPS):
        first, second = torch.randn(2, 8, 3, 6, 6, generator=data, dtype=torch.float64)
        with sync.accumulating():
            sync.module(first).square().mean().backward()
        sync.module(second).square().mean().backward()
        if not overrides:
            average(weight.grad for weight in model.parameters() if weight.grad is not None)
        optimizer.step()
        optimizer.zero_grad()
        sync.after_step(step)
    sync.before_validation()
    return tensors(model)


def test_one_worker_trains_the_bare_model(name: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = Worker(sync=compose([f"sync={name}", "division=open"]).sync)
    assert strategy.synchronise(model, optimizer, worker).module is model


def test_all_workers_validate_one_model(name: str, pair: RankPool) -> None:
    first, second = pair.run(trained, (f"sync={name}",))
    assert first.keys() == second.keys()
    for key in first:
        torch.testing.assert_close(first[key], second[key], msg=lambda text, key=key: f"{key}: {text}")
        assert torch.isfinite(first[key]).all()


def test_workers_learn_from_each_other(name: str, pair: RankPool) -> None:
    alone = trained(Worker(), (f"sync={name}",))
    together, _ = pair.run(trained, (f"sync={name}",))
    assert alone.keys() == together.keys()
    assert any(not torch.equal(alone[key], together[key]) for key in alone)


def test_a_strategy_of_the_closed_division_takes_the_steps_of_averaged_gradients(
    name: str, pair: RankPool
) -> None:
    """To rounding in float64, for all kinds of weights. The open division promises nothing of the kind."""
    if not plugins.load("sync", name).Config.CLOSED and name != "ddp":
        return
    for result, expected in zip(pair.run(trained, (f"sync={name}",)), pair.run(trained), strict=True):
        assert result.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(result[key], value, rtol=1e-10, atol=1e-12)


def test_the_driver_needs_no_torch_for_a_strategy(name: str) -> None:
    import_without(plugins.load("sync", name), {"torch"})

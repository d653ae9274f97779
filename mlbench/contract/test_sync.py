"""The contract of a sync strategy: --sync NAME, or every strategy that is found."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from mlbench.contract.options import names
from mlbench.contract.ranks import RankPool
from mlbench.experiment import plugins
from mlbench.experiment.config import compose
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


def trained(worker: Worker, name: str) -> dict[str, Any]:
    """Train a small model, with batch norm and two micro-batches a step, on data that differs by rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    config = compose([f"sync={name}", "division=open"]).sync
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sync = strategy.synchronise(model, optimizer, replace(worker, sync=config))
    data = torch.Generator().manual_seed(worker.rank)
    for step in range(STEPS):
        first, second = torch.randn(2, 16, 4, generator=data)
        with sync.accumulating():
            sync.module(first).square().mean().backward()
        sync.module(second).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        sync.after_step(step)
    sync.before_validation()
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {key: value.detach().clone() for key, value in tensors}


def test_one_worker_trains_the_bare_model(name: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = Worker(sync=compose([f"sync={name}", "division=open"]).sync)
    assert strategy.synchronise(model, optimizer, worker).module is model


def test_all_workers_validate_one_model(name: str, pair: RankPool) -> None:
    first, second = pair.run(trained, name)
    assert first.keys() == second.keys()
    for key in first:
        torch.testing.assert_close(first[key], second[key], msg=lambda text, key=key: f"{key}: {text}")
        assert torch.isfinite(first[key]).all()


def test_workers_learn_from_each_other(name: str, pair: RankPool) -> None:
    alone = trained(Worker(), name)
    together, _ = pair.run(trained, name)
    assert any(not torch.equal(alone[key], together[key]) for key in alone)


def test_the_driver_needs_no_torch_for_a_strategy(name: str) -> None:
    module = plugins.load("sync", name).__name__
    code = f"import sys, {module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

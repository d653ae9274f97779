"""`mlbench.synchronise` in a loop of one's own, beside mlbench's own loop, with real gloo processes."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from ranks import RankPool
from torch import nn

import mlbench
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.contract.by_hand import tensors
from mlbench.contract.test_sync import Varied
from mlbench.training import loop
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker

STEPS = 10
# What `synchronise` is given, and the same as words of a run.
STRATEGIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "ddp": ({}, ("sync=ddp",)),
    "zero1": ({}, ("sync=zero1",)),
    "fsdp": ({"unit": "child"}, ("sync=fsdp", "sync.unit=child")),
    "all_reduce": ({"quantity": "weights"}, ("sync=all_reduce", "sync.quantity=weights")),
    "powersgd": ({"rank": 1}, ("sync=compression", "sync.method=powersgd", "sync.rank=1")),
    "topk": ({"density": 0.1}, ("sync=compression", "sync.method=topk", "sync.density=0.1")),
    "randomk": ({"density": 0.1}, ("sync=compression", "sync.method=randomk", "sync.density=0.1")),
    "local_sgd": (
        {"every": 4, "outer_lr": 0.7, "outer_momentum": 0.9},
        ("sync=local_sgd", "sync.every=4", "sync.outer_lr=0.7", "sync.outer_momentum=0.9"),
    ),
    "decentralised": ({}, ("sync=decentralised",)),
}


@pytest.fixture(scope="module")
def pair() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


def started(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Varied().train()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batches(rank: int) -> list[torch.Tensor]:
    return list(torch.randn(STEPS, 2, 8, 3, 6, 6, generator=torch.Generator().manual_seed(rank)))


def in_our_loop(worker: Worker, overrides: tuple[str, ...]) -> tuple[dict[str, torch.Tensor], int]:
    """Return the weights that mlbench's loop validates, and the bytes that this rank sent."""
    model, optimizer = started(0)
    validated = []

    def validate(model: nn.Module, data: Any) -> dict[str, float]:
        validated.append(tensors(model))
        return {"loss": 1.0}

    setup = TrainingSetup(
        model=model,
        optimizer=optimizer,
        epochs=1,
        load=lambda: batches(worker.rank),
        steps=lambda data, epoch: [list(step) for step in data],
        forward=lambda net, batch: net(batch),
        loss=lambda output, batch: output.square().mean(),
        validate=validate,
        samples=len,
    )
    overrides = (*overrides, "division=open", f"workers={worker.world_size}")
    result = loop.train(setup, replace(worker, sync=compose(overrides).sync))
    return validated[-1], sum(times.bytes_sent or 0 for times in result.phase_times)


def in_their_loop(worker: Worker, strategy: str, settings: dict[str, Any]) -> tuple[Any, int]:
    """Return what a plain loop, whose ranks begin with different weights, has for its validation."""
    model, optimizer = started(worker.rank)
    sync = mlbench.synchronise(model, optimizer, strategy, **settings)
    for first, second in batches(worker.rank):
        with sync.accumulating():
            sync.module(first).square().mean().backward()
        sync.module(second).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    own = tensors(model) if strategy != "fsdp" else {}
    with sync.validation() as validated:
        assert validated is model
        result = tensors(validated)
    if strategy in ("local_sgd", "decentralised"):  # a validation changes nothing
        assert all(torch.equal(own[name], value) for name, value in tensors(model).items())
    return result, sync.bytes_sent()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_foreign_loop_makes_the_steps_of_ours_to_the_last_bit(strategy: str, pair: RankPool) -> None:
    settings, overrides = STRATEGIES[strategy]
    ours = pair.run(in_our_loop, overrides)
    theirs = pair.run(in_their_loop, strategy, settings)
    for (expected, bytes_sent), (weights, sent) in zip(ours, theirs, strict=True):
        assert weights.keys() == expected.keys() and sent == bytes_sent > 0
        for name, value in expected.items():
            assert torch.equal(weights[name], value), name


def begun_in_parts(worker: Worker) -> torch.Tensor:
    """Return the weights with which a rank begins that are a part of a larger tensor, as of another model."""
    model = nn.Linear(6, 4, bias=False)
    model.weight = nn.Parameter(torch.full((4, 9), worker.rank + 1.0)[:, :6])
    mlbench.synchronise(model, torch.optim.SGD(model.parameters(), lr=0.1), "local_sgd")
    return model.weight.detach().clone()


def test_ranks_begin_alike_also_with_weights_that_have_gaps_in_memory(pair: RankPool) -> None:
    for weights in pair.run(begun_in_parts):
        assert torch.equal(weights, torch.ones(4, 6))


def refused_after_a_step(worker: Worker) -> str:
    model, optimizer = started(0)
    model(batches(0)[0][0]).square().mean().backward()
    optimizer.step()
    with pytest.raises(UserError) as error:
        mlbench.synchronise(model, optimizer, "fsdp")
    return str(error.value)


def test_the_momentum_of_earlier_steps_is_not_set_to_0_in_silence(pair: RankPool) -> None:
    for sentence in pair.run(refused_after_a_step):
        assert sentence.startswith("sync=fsdp begins")


@pytest.mark.parametrize(
    ("strategy", "settings", "sentence"),
    [
        ("power_sgd", {}, "strategy 'power_sgd' is unknown: did you mean powersgd?"),
        ("powersgd", {"rank": 0}, "sync.rank=0: must be greater than 0"),
        ("powersgd", {"ranks": 4}, "ranks is not a field of the file of sync=compression"),
        ("local_sgd", {"nesterov": True}, "nesterov=true needs outer_momentum above 0"),
    ],
)
def test_a_mistake_is_a_sentence(strategy: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        mlbench.synchronise(*started(0), strategy, **settings)
    assert sentence in str(error.value)


def refused(worker: Worker, strategy: str, settings: dict[str, Any]) -> str:
    with pytest.raises(UserError) as error:
        mlbench.synchronise(*started(0), strategy, precision="fp16", **settings)
    return str(error.value)


@pytest.mark.parametrize(
    ("strategy", "settings", "sentence"),
    [
        ("powersgd", {}, "sync.method=powersgd sync.memory=error_feedback: fp16"),
        ("local_sgd", {}, "strategy 'local_sgd': with fp16 a rank skips a step alone"),
        ("decentralised", {}, "strategy 'decentralised': with fp16 a rank skips a step alone"),
        ("all_reduce", {"quantity": "weights"}, "strategy 'all_reduce': with fp16 a rank skips a step alone"),
    ],
)
def test_what_a_strategy_cannot_combine_is_refused_on_every_rank(
    strategy: str, settings: dict[str, Any], sentence: str, pair: RankPool
) -> None:
    first, second = pair.run(refused, strategy, settings)
    assert first == second and first.startswith(sentence)

"""What a backend sets up at its first use is there before the clock, whatever the strategy."""

import runpy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import RankPool
from torch import nn

from mlbench.config.compose import choices, compose
from mlbench.training import clock_offset, loop
from mlbench.training.setup import TrainingSetup
from mlbench.training.sync import wire
from mlbench.training.worker import Worker

METHODS = ("randomk", "sign_majority", "powersgd")  # of compression, beside the default


def collectives_before_the_clock(worker: Worker, overrides: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return of each process group its backend and how many collectives it made before the clock started."""
    counts: list[tuple[str, int]] = []
    start_clock = clock_offset.start_clock
    groups: Any = dist.distributed_c10d._world.pg_map
    before = {id(group): group._get_sequence_number_for_group() for group in groups}

    def start(*arguments: Any) -> dict[str, float]:
        for group in groups:
            made = group._get_sequence_number_for_group() - before.get(id(group), 0)
            counts.append((dist.get_backend(group), made))
        return start_clock(*arguments)

    clock_offset.start_clock = start
    try:
        own = replace(worker, sync=compose([*overrides, "division=open", "workers=2"]).sync)
        model = nn.Linear(3, 1)
        setup = TrainingSetup(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), epochs=0, steps=lambda *_: [],
            forward=lambda *_: None, loss=lambda *_: torch.zeros(()), validate=lambda *_: {}, samples=len,
        )  # fmt: skip
        loop.train(setup, own)
    finally:
        clock_offset.start_clock = start_clock
    return counts


def test_every_strategy_s_groups_made_their_collectives_before_the_clock_started() -> None:
    overrides = [(f"sync={name}",) for name in choices("sync")]
    overrides += [("sync=compression", f"sync.method={method}") for method in METHODS]
    overrides += [("sync=all_reduce", "sync.quantity=weights"), ("sync=local_sgd", "sync.start_step=2")]
    with RankPool(2) as pool:
        for each in overrides:
            for counts in pool.run(collectives_before_the_clock, each):
                (_, default), *others = counts
                assert default >= 4 and others and all(made >= 1 for _, made in others), (each, counts)


def messages(worker: Worker) -> list[tuple[str, int]]:
    """Return kind and bytes of the collectives with which a worker of a stand-in GPU connects."""
    from stand_in_gpu import CUDA, Gpu

    made: list[tuple[str, int]] = []
    gpu, patch = Gpu(), pytest.MonkeyPatch()
    gpu.install(patch)
    for owner, name in [
        (dist, "all_reduce"),
        (wire, "all_gather_single"),
        (wire, "reduce_scatter_single"),
        (dist, "all_to_all_single"),
    ]:

        def collective(*tensors: torch.Tensor, name: str = name) -> None:
            made.append((name, max(tensor.nbytes for tensor in tensors)))
            tensors[0].zero_()

        patch.setattr(owner, name, collective)
    with gpu, patch.context():
        wire.connect(replace(worker, device=CUDA))
    patch.undo()
    assert gpu.faults == [] and gpu.host == gpu.main.clock, "and it waits until the GPU has made them"
    return made


def test_on_a_gpu_both_a_number_and_a_large_message_go_each_way() -> None:
    kinds = {"all_reduce", "all_gather_single", "reduce_scatter_single", "all_to_all_single"}
    sizes = {(kind, size) for kind in kinds for size in (12, -(-wire.LARGE_BYTES // 12) * 12)}
    assert set(messages(Worker(world_size=3))) == sizes


def test_before_torch_2_13_the_collectives_have_their_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist, "all_gather_single")
    monkeypatch.delattr(dist, "reduce_scatter_single")
    module = runpy.run_path(str(wire.__file__))
    assert module["all_gather_single"] is dist.all_gather_into_tensor
    assert module["reduce_scatter_single"] is dist.reduce_scatter_tensor

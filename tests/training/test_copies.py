"""Copies to a GPU and memory that two streams use, on a stand-in that names what nothing orders."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from stand_in_gpu import CUDA, Gpu

from mlbench.launch import worker_process
from mlbench.tasks.translation.batches import RaggedColumn
from mlbench.tasks.translation.subwords import EOS, PAD
from mlbench.training import checkpoint
from mlbench.training.copies import CopyStream
from mlbench.training.sync.codecs import RandomK, TopK
from mlbench.training.sync.compression.torch import Compressor
from mlbench.training.timer import PhaseTimer
from mlbench.training.worker import Worker


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    device = Gpu()
    device.install(monkeypatch)
    return device


def train(gpu: Gpu, batches: int) -> list[torch.Tensor]:
    """Let each step read its batch in a kernel on the main stream; return what the kernels computed."""
    with gpu:
        to_device = CopyStream(CUDA)
        return [to_device(torch.full((4,), float(number))) * 2 for number in range(batches)]


def test_a_copy_is_read_after_it_and_keeps_its_memory_until_it_was_read(gpu: Gpu) -> None:
    results = train(gpu, 3)
    assert gpu.faults == []
    assert [result.tolist() for result in results] == [[0.0] * 4, [2.0] * 4, [4.0] * 4]


def test_a_copy_waits_for_no_kernel_so_it_goes_on_beside_the_step_before(gpu: Gpu) -> None:
    orders = []
    new_stream = gpu.new_stream

    def watched(*arguments: Any) -> Any:
        stream = new_stream(*arguments)
        orders.append(stream)
        return stream

    torch.cuda.Stream = watched  # type: ignore[misc, assignment]  # monkeypatch puts torch's own back
    train(gpu, 3)
    (stream,) = orders
    assert stream.clock[gpu.main.name] == 0 and gpu.main.clock[stream.name] == 3
    assert not gpu.host, "the host waited for nothing"


@pytest.mark.parametrize("resident", [True, False])
def test_a_batch_of_sentences_never_makes_the_host_wait(gpu: Gpu, resident: bool) -> None:
    """Where the sub-words are on the GPU as where they are not; the first copy, off the steps, may."""
    values, offsets = np.array([5, 6, 7, 8, 9], np.int32), np.array([0, 2, 5], np.int64)
    with gpu:
        column = RaggedColumn(values, offsets, CUDA, storage=CUDA if resident else torch.device("cpu"))
        gpu.faults.clear()
        ids = column.gather(np.array([1, 0]), 4)
        assert ids.is_cuda
    assert ids.tolist() == [[7, 8, 9, EOS], [5, 6, EOS, PAD]]
    assert gpu.faults == [] and not gpu.host


def test_random_coordinates_live_until_the_backend_s_callback_has_added_them(gpu: Gpu) -> None:
    """The callback runs on a stream of a pool; when the hook's closure goes, backward takes its memory."""
    worker: Any = SimpleNamespace(generator=lambda *_: torch.Generator().manual_seed(0))
    with gpu:
        vector = torch.arange(8.0).to(CUDA, non_blocking=True)
        message = RandomK(0.5, False, worker).encode(vector)
        pool = gpu.new_stream()
        pool.wait_stream(gpu.main)  # as c10d's future makes the callback's stream do
        total = torch.zeros(8, device="cuda")
        pool.wait_stream(gpu.main)
        with gpu.on(pool):
            message.add(message.payload, total)
        payload = message.payload
        gpu.faults.clear()
        del message
    assert gpu.faults == [], "backward's stream takes the coordinates while the callback reads them"
    assert sorted(total[total > 0].tolist()) == sorted(payload[payload > 0].tolist())


def test_gathered_messages_live_until_the_backend_s_callback_has_added_them(gpu: Gpu) -> None:
    """As its coordinates: backward's stream takes their memory when the hook has returned."""
    pool = gpu.new_stream()

    def then(callback: Any) -> Any:
        pool.wait_stream(gpu.main)
        with gpu.on(pool):
            return callback(None)

    def all_gather(payload: torch.Tensor) -> Any:
        work = SimpleNamespace(get_future=lambda: SimpleNamespace(then=then))
        return [payload.clone(), payload.clone()], work

    wire: Any = SimpleNamespace(workers=2, timer=PhaseTimer(enabled=False), all_gather=all_gather)
    with gpu:
        vector = torch.arange(8.0, device="cuda")
        bucket: Any = SimpleNamespace(buffer=lambda: vector, index=lambda: 0, is_last=lambda: True)
        mean: Any = Compressor(TopK(0.25), "none", wire).average(bucket)
        assert gpu.faults == []
    assert mean.tolist() == [0.0] * 6 + [6.0, 7.0]


def test_a_checkpoint_of_rank_0_s_gpu_is_read_into_memory_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch puts each tensor where it was saved from: with a GPU 0, that is a copy a rank there."""
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    torch.save({"states": {"model": torch.arange(3.0)}}, tmp_path / "state.pt")
    with pytest.raises(RuntimeError, match="CUDA device"):
        torch.load(tmp_path / "state.pt", weights_only=True)
    checkpoint = SimpleNamespace(as_directory=lambda: nullcontext(str(tmp_path)))
    monkeypatch.setattr("ray.train.get_checkpoint", lambda: checkpoint)
    state = worker_process._resume()
    assert state is not None and state["states"]["model"].tolist() == [0.0, 1.0, 2.0]


def test_after_a_restart_no_second_model_stays_in_memory() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = {"model": model, "optimizer": optimizer}
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    rank = {"samples": 8, "phase_times": [], "random": {"cpu": torch.get_rng_state().tolist()}}
    saved = {"epoch": 1, "step": 4, "states": states, "ranks": [rank], "validations": [], "clocks": {}}
    worker = Worker(resume=saved)
    assert checkpoint.restore(parts, worker, SimpleNamespace()) == (1, 4, 8)  # type: ignore[arg-type]
    assert worker.resume is not None and "states" not in worker.resume and "clocks" in worker.resume


def test_random_numbers_of_a_rank_s_gpu_go_on_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own GPU: that of another rank has drawn other masks of dropout."""
    gpus = {torch.device("cuda", number): torch.Generator().manual_seed(number) for number in (0, 1)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: gpus[device].get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: gpus[device].set_state(state))
    reporter: Any = SimpleNamespace(phase_times=[], validations=[], clocks={})
    worker = Worker(device=torch.device("cuda", 1))
    worker.timer.started_at = 0.0
    saved = checkpoint.state({}, worker, reporter, epoch=1, step=4, samples=8)
    drawn = {device: torch.rand(5, generator=gpu) for device, gpu in gpus.items()}
    gone_on = {device: gpu.get_state() for device, gpu in gpus.items()}
    worker.resume = json.loads(json.dumps(saved))  # plain values
    assert checkpoint.restore({}, worker, reporter) == (1, 4, 8)
    assert torch.equal(torch.rand(5, generator=gpus[worker.device]), drawn[worker.device])
    assert torch.equal(gpus[CUDA].get_state(), gone_on[CUDA])

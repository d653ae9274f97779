"""Every GPU of a node is calibrated and counted, by the workers that have them."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stand_in_gpu import CUDA, Gpu
from syrupy.assertion import SnapshotAssertion

from mlbench import clock
from mlbench.clusters import calibrate
from mlbench.config.compose import compose
from mlbench.launch import worker_process
from mlbench.record.record import Node
from mlbench.training.worker import Worker

OTHERS = [
    [1, 1, ["GPU-d", {"cuda_gemm_flops_per_s": 4.0}]],
    [0, 1, ["GPU-b", {"cuda_gemm_flops_per_s": 2.0}]],
]


def test_a_node_s_first_worker_learns_of_all_gpus_of_its_node(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    properties = SimpleNamespace(uuid="a")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    measured: list[Any] = []

    def measure(threads: int, **options: Any) -> dict[str, float]:
        measured.append(options["devices"])
        return {"cuda_gemm_flops_per_s": 1.0}

    monkeypatch.setattr(calibrate, "calibrate", measure)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: measured.append("memory is given back"))
    worker: Any = SimpleNamespace(local_rank=0, gather=lambda own: [*OTHERS, own])
    gpus = worker_process.node_gpus(worker, CUDA, node_rank=0)
    assert gpus == [("GPU-a", {"cuda_gemm_flops_per_s": 1.0}), ("GPU-b", {"cuda_gemm_flops_per_s": 2.0})]
    assert measured == [["cuda"], "memory is given back"]
    node = worker_process.with_gpus(Node(hostname="here", usable_cpus=2), [rates for _, rates in gpus])
    assert node.calibration == {"cuda_gemm_flops_per_s": 1.0} and len(node.gpu_calibration) == 2
    assert node.warnings == snapshot


def test_a_gpu_that_cannot_be_calibrated_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="a"))

    def out_of_memory(threads: int, **_: Any) -> dict[str, float]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(calibrate, "calibrate", out_of_memory)
    worker: Any = SimpleNamespace(local_rank=0, gather=lambda own: [*OTHERS, own])
    rates = [each for _, each in worker_process.node_gpus(worker, CUDA, node_rank=0)]
    assert rates[0] == {}
    node = worker_process.with_gpus(Node(hostname="here", usable_cpus=2), rates)
    assert node.warnings == snapshot and node.gpu_calibration == []


@pytest.mark.plugin("jax")
def test_a_gpu_on_which_another_framework_trains_is_calibrated_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was not: its energy was missing, and its speed was not compared with other runs'."""
    experiment = compose(["task=logreg", "framework=jax", "backend=nccl"])
    context = worker_process.RankContext(0, 1, 1, 2, 0)
    assert worker_process.rank_gpu(experiment, context) == torch.device("cuda", 1)
    current: list[torch.device] = []
    monkeypatch.setattr(worker_process, "rank_context", lambda launcher: context)
    monkeypatch.setattr(worker_process, "_resume", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    spec = worker_process.WorkerSpec(experiment, 1, threads, ("127.0.0.1", 9), "", "", None, clock.epoch())
    worker = worker_process.build_worker(spec)
    assert current == [torch.device("cuda", 1)] and worker.device.type == "cpu", "torch only measures there"


@pytest.mark.parametrize(
    ("words", "gpu"),
    [
        (["backend=gloo"], None),
        (["backend=nccl"], torch.device("cuda", 3)),
        (["backend=nccl", "launcher=torchrun"], torch.device("cuda", 1)),
    ],
)
def test_ray_knows_which_gpu_is_its_worker_s_and_torchrun_counts_them(
    words: list[str], gpu: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray may reserve any GPU of a node for a worker, by its CUDA_VISIBLE_DEVICES."""
    ray_torch = SimpleNamespace(get_device=lambda: torch.device("cuda", 3))
    monkeypatch.setitem(sys.modules, "ray.train.torch", ray_torch)  # whose import takes seconds
    assert worker_process.rank_gpu(compose(words), worker_process.RankContext(0, 1, 1, 2, 0)) == gpu


def test_a_gpu_s_peak_counts_from_the_start_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    gpu = Gpu()
    gpu.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append(f"reset {device}"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5)
    worker = Worker(device=CUDA)
    worker.reset_peak_memory()
    assert calls == ["empty", "reset cuda:0"] and worker.peak_memory_bytes() == 5
    assert Worker().peak_memory_bytes() is None

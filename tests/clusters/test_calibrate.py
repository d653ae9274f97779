import itertools
import time

import pytest
import torch
from stand_in_gpu import Gpu
from syrupy.assertion import SnapshotAssertion

from mlbench.clusters import calibrate as module
from mlbench.clusters.calibrate import MATRIX, SECONDS, calibrate
from mlbench.record import provenance

N, BYTES = 64, 2**16  # of blocks that take no time worth measuring
GEMM = 2 * N**3
COPY = 2 * BYTES
NAMES = [f"{{}}_{kind}_per_s{suffix}" for kind in ("gemm_flops", "copy_bytes") for suffix in ("", "_median")]


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def small(no_gpu, monkeypatch):
    """Blocks for tests whose clock is not real: what they compute does not matter."""
    monkeypatch.setitem(MATRIX, "cpu", N)
    monkeypatch.setattr(module, "BUFFER", BYTES)


def test_rates_are_work_over_the_clocks_seconds(small):
    """Blocks of 4, 1, 2 s, then of 8, 2, 4 s: the best and the median of each kind."""
    stamps = iter(itertools.accumulate([0, 4, 1, 2, 100, 8, 2, 4]))
    row = calibrate(1, seconds=0.001, clock=lambda: float(next(stamps)))
    assert row["cpu_gemm_flops_per_s"] == GEMM / 1
    assert row["cpu_gemm_flops_per_s_median"] == GEMM / 2
    assert row["cpu_copy_bytes_per_s"] == COPY / 2
    assert row["cpu_copy_bytes_per_s_median"] == COPY / 4
    assert next(stamps, None) is None  # three blocks each, although the time was up


@pytest.mark.parametrize(("given", "blocks"), [("2.0", 4), ("4.0", 8)])
def test_the_environment_says_how_long_and_is_recorded(small, monkeypatch, given, blocks):
    reads: list[float] = []

    def clock():
        reads.append(0.25 * len(reads))
        return reads[-1]

    monkeypatch.setenv(SECONDS, given)
    calibrate(1, clock=clock)
    assert len(reads) == 2 * (1 + blocks)
    assert provenance.environment()[SECONDS] == given


def test_nothing_is_measured_in_no_time(monkeypatch):
    monkeypatch.setenv(SECONDS, "0")
    assert calibrate(1, clock=lambda: pytest.fail("the clock is read")) == {}


def test_the_given_threads_compute_and_the_process_keeps_its_own(small):
    seen = []

    def clock():
        seen.append(torch.get_num_threads())
        return time.perf_counter()

    before = torch.get_num_threads()
    state = torch.get_rng_state()
    try:
        torch.set_num_threads(1)
        row = calibrate(2, seconds=0.01, clock=clock)
        assert set(seen) == {2} and row["threads"] == 2
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_real_clock_gives_plausible_rates(no_gpu):
    row = calibrate(1, seconds=0.05, clock=time.perf_counter)
    assert set(row) == {"threads"} | {name.format("cpu") for name in NAMES}
    assert 1e8 < row["cpu_gemm_flops_per_s_median"] <= row["cpu_gemm_flops_per_s"] < 1e15
    assert 1e7 < row["cpu_copy_bytes_per_s_median"] <= row["cpu_copy_bytes_per_s"] < 1e14


@pytest.mark.gpu
def test_a_gpu_is_waited_for():
    """Without waiting, queued products would seem to run at thousands of TFLOP/s."""
    row = calibrate(1, seconds=0.4, clock=time.perf_counter)
    assert all(name.format(device) in row for name in NAMES for device in ("cpu", "cuda"))
    assert 1e11 < row["cuda_gemm_flops_per_s"] < 1e15
    assert 1e9 < row["cuda_copy_bytes_per_s"] < 1e14
    n = MATRIX["cuda"]
    left, product = torch.rand(n, n, device="cuda"), torch.empty(n, n, device="cuda")
    torch.mm(left, left, out=product)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
    for event in events[:-1]:
        event.record()
        torch.mm(left, left, out=product)
    events[-1].record()
    torch.cuda.synchronize()
    best = 1e3 / min(a.elapsed_time(b) for a, b in itertools.pairwise(events))
    assert row["cuda_gemm_flops_per_s"] == pytest.approx(2 * n**3 * best, rel=0.25)


def test_a_gpu_computes_in_float32_and_on_its_tensor_cores_and_is_waited_for(monkeypatch):
    """On a stand-in: every block's end is waited for, products of halves are of float16."""
    gpu = Gpu()
    gpu.install(monkeypatch)
    monkeypatch.setitem(MATRIX, "cuda", N)
    monkeypatch.setattr(module, "BUFFER", BYTES)
    ticks = itertools.count()
    with gpu:
        row = calibrate(1, seconds=1e-9, devices=["cuda"], clock=lambda: float(next(ticks)))
    kinds = ("gemm_flops", "copy_bytes", "half_gemm_flops")
    assert set(row) == {"threads"} | {f"cuda_{kind}_per_s{end}" for kind in kinds for end in ("", "_median")}
    assert row["cuda_half_gemm_flops_per_s"] == GEMM and row["cuda_copy_bytes_per_s"] == COPY
    runs = [name for name in gpu.log if name in ("mm", "copy_", "wait")]
    assert runs == [*["mm", "wait"] * 4, *["copy_", "wait"] * 4, *["mm", "wait"] * 4]
    assert gpu.faults == [] and gpu.log.count("half") == 3


def test_a_node_is_as_fast_as_its_slowest_gpu_which_is_named(snapshot: SnapshotAssertion):
    fast = {"threads": 2, "cuda_gemm_flops_per_s": 60e12, "cuda_gemm_flops_per_s_median": 59e12}
    slow = fast | {"cuda_gemm_flops_per_s": 54e12}
    gpus = [fast, fast, slow, fast]
    assert module.slowest(gpus)["cuda_gemm_flops_per_s"] == 54e12 and "threads" not in module.slowest(gpus)
    (sentence,) = module.slow_gpus(gpus)
    assert sentence == snapshot
    assert module.slow_gpus([fast] * 4) == module.slow_gpus([]) == [] and module.slowest([]) == {}

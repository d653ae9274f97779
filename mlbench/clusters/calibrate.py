"""Measure the speed of a node in two seconds, so that its results show a slow node."""

import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from mlbench.record.noise import SPEED_SHARE

MATRIX = {"cpu": 2048, "cuda": 8192}  # rows and columns; a product takes 1 ms to 0.5 s on either
BUFFER = 256 * 2**20  # bytes, more than the caches of most processors
BLOCKS = 3  # timed at least, even on a slow node
SECONDS = "MLBENCH_CALIBRATION_S"  # environment variable, recorded: s for all blocks of a node together

Clock = Callable[[], float]


def calibrate(
    threads: int, *, seconds: float | None = None, devices: Sequence[str] | None = None, clock: Clock
) -> dict[str, float]:
    """Return one flat row of rates of this node: the fastest of several timed blocks, and the median.

    - `cpu_gemm_flops_per_s`: products of square float32 matrices, 2n^3 FLOPs each.
    - `cpu_copy_bytes_per_s`: copies of a buffer, bytes read and bytes written both counted.
    - `cuda_...`: the same on the current CUDA device, if there is one, and `cuda_half_gemm_flops_per_s`:
      products of float16 matrices, which tensor cores compute.

    Args:
        threads: number of computing CPU threads.
        seconds: for all blocks together, by default MLBENCH_CALIBRATION_S or 2. The time of a block beyond
            its share is added, as is one untimed block of each. With 0 nothing is measured and the row is
            empty.
        devices: those to measure of "cpu" and "cuda", by default all that exist.
        clock: returns seconds.
    """
    import torch

    whole = float(os.environ.get(SECONDS, "2")) if seconds is None else seconds
    if whole <= 0:
        return {}
    if devices is None:
        devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    share = whole / (2 * len(devices))  # of a block; a GPU's third comes on top
    row: dict[str, float] = {"threads": threads}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for device in devices:
            wait = torch.cuda.synchronize if device == "cuda" else lambda: None
            for name, (work, run) in _blocks(device).items():
                rates = _rates(run, wait, work=work, seconds=share, clock=clock)
                row[f"{device}_{name}_per_s"] = max(rates)
                row[f"{device}_{name}_per_s_median"] = statistics.median(rates)
    finally:
        torch.set_num_threads(before)
    return row


def slowest(gpus: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the lowest of each rate over a node's GPUs, since all of them wait for the slowest."""
    names = [name for name in gpus[0] if name != "threads"] if gpus else []
    return {name: min(gpu[name] for gpu in gpus) for name in names}


def slow_gpus(gpus: Sequence[dict[str, float]]) -> list[str]:
    """Return one sentence for each rate in which a GPU is SPEED_SHARE below the median of its node's.

    GPUs are in the order of their workers on the node.
    """
    sentences = []
    for name in slowest(gpus):
        if name.endswith("_median"):
            continue
        middle = statistics.median(gpu[name] for gpu in gpus)
        sentences += [
            f"GPU {number} of {len(gpus)} is {100 * (1 - gpu[name] / middle):.0f} % slower than the others "
            f"in {name.removesuffix('_per_s').replace('_', ' ')}: all wait for it"
            for number, gpu in enumerate(gpus)
            if gpu[name] < (1 - SPEED_SHARE) * middle
        ]
    return sentences


def _blocks(device: str) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Return by name how much work a block does, and the block."""
    import torch

    n = MATRIX[device]
    # Random, because a GPU at its power limit multiplies constants faster. A separate generator.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.rand(n, n, device=device, generator=generator) for _ in range(2))
    product = torch.empty(n, n, device=device)
    source = torch.ones(BUFFER // 4, device=device)
    target = torch.zeros(BUFFER // 4, device=device)
    blocks: dict[str, tuple[int, Callable[[], Any]]] = {
        "gemm_flops": (2 * n**3, lambda: torch.mm(left, right, out=product)),
        "copy_bytes": (2 * BUFFER, lambda: target.copy_(source)),
    }
    if device == "cuda":
        halves = [matrix.half() for matrix in (left, right, product)]
        blocks["half_gemm_flops"] = 2 * n**3, lambda: torch.mm(halves[0], halves[1], out=halves[2])
    return blocks


def _rates(
    run: Callable[[], Any], wait: Callable[[], Any], *, work: int, seconds: float, clock: Clock
) -> list[float]:
    """Return the work per second of each block. Blocks start until `seconds` are over."""
    run()
    wait()
    rates: list[float] = []
    begin = now = clock()
    while len(rates) < BLOCKS or now - begin < seconds:
        before = now
        run()
        wait()
        now = clock()
        rates.append(work / (now - before))
    return rates

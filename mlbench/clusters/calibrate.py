"""What a node can do, measured in two seconds, so that a slow node shows beside its results."""

import os
import statistics
from collections.abc import Callable
from typing import Any

MATRIX = {"cpu": 2048, "cuda": 8192}  # rows and columns; a product takes 1 ms to 0.5 s on either
BUFFER = 256 * 2**20  # bytes, beyond the caches of most processors
BLOCKS = 3  # timed at least, however slow the node is
SECONDS = "MLBENCH_CALIBRATION_S"  # environment variable, recorded: s for all blocks of a node together

Clock = Callable[[], float]


def calibrate(threads: int, *, seconds: float | None = None, clock: Clock) -> dict[str, float]:
    """Return one flat row of rates of this node: the fastest of several timed blocks, and the median.

    - `cpu_gemm_flops_per_s`: products of square float32 matrices, 2n^3 FLOPs each.
    - `cpu_copy_bytes_per_s`: copies of a buffer, bytes read and bytes written both counted.
    - `cuda_...`: the same on the current CUDA device, where there is one.

    `threads` is how many CPU threads compute, `clock` returns seconds, `seconds` is for all blocks
    together, by default 2 or what MLBENCH_CALIBRATION_S says; what a block needs beyond its share comes on
    top, as does one untimed block of each. With 0 seconds nothing is measured and the row is empty.
    """
    import torch

    whole = float(os.environ.get(SECONDS, "2")) if seconds is None else seconds
    if whole <= 0:
        return {}
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    share = whole / (2 * len(devices))
    row: dict[str, float] = {"threads": threads}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for device in devices:
            wait = torch.cuda.synchronize if device == "cuda" else _nothing
            for name, (work, run) in _blocks(device).items():
                rates = _rates(run, wait, work=work, seconds=share, clock=clock)
                row[f"{device}_{name}_per_s"] = max(rates)
                row[f"{device}_{name}_per_s_median"] = statistics.median(rates)
    finally:
        torch.set_num_threads(before)
    return row


def _blocks(device: str) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Return by name how much work a block does, and the block."""
    import torch

    n = MATRIX[device]
    # Random, because a GPU at its power limit multiplies constants faster; and its own generator.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.rand(n, n, device=device, generator=generator) for _ in range(2))
    product = torch.empty(n, n, device=device)
    source = torch.ones(BUFFER // 4, device=device)
    target = torch.zeros(BUFFER // 4, device=device)
    return {
        "gemm_flops": (2 * n**3, lambda: torch.mm(left, right, out=product)),
        "copy_bytes": (2 * BUFFER, lambda: target.copy_(source)),
    }


def _rates(
    run: Callable[[], Any], wait: Callable[[], Any], *, work: int, seconds: float, clock: Clock
) -> list[float]:
    """Return the work per second of each block; blocks start until `seconds` are over."""
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


def _nothing() -> None: ...

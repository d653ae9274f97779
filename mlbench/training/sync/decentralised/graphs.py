"""Graphs of who sends to whom. Equal numbers of neighbours make equal weights doubly stochastic."""

import math

from mlbench.config.errors import UserError


def receivers(graph: str, rank: int, workers: int, step: int) -> list[int]:
    """Return the ranks, ascending, to which `rank` sends its model after step `step`, itself left out."""
    if graph == "torus":
        return _torus(rank, workers)
    hops = [2**power for power in range(math.ceil(math.log2(workers)))]
    if graph == "ring":
        shifts = [1, -1]
    elif graph == "complete":
        shifts = list(range(1, workers))
    elif graph == "exponential":
        shifts = hops
    else:
        shifts = [hops[step % len(hops)]]
    return sorted({(rank + shift) % workers for shift in shifts} - {rank})


def senders(graph: str, rank: int, workers: int, step: int) -> list[int]:
    """Return the ranks, ascending, that send their model to `rank`."""
    return [other for other in range(workers) if rank in receivers(graph, other, workers, step)]


def _torus(rank: int, workers: int) -> list[int]:
    rows = max(count for count in range(1, math.isqrt(workers) + 1) if workers % count == 0)
    if rows == 1:
        raise UserError(
            f"{workers} workers make no torus: it is not a product of two numbers above 1",
            hint="take 4, 6, 8, 9 ... workers, or sync.graph=ring",
        )
    columns = workers // rows
    row, column = divmod(rank, columns)
    around = [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
    return sorted({(r % rows) * columns + c % columns for r, c in around} - {rank})

"""All-reduce in a plain loop, without mlbench: one rank of `collectives.py`'s references.

    mpirun -n 2 python benchmarks/plain_collectives.py mpi4py 1000,10000 100 FOLDER
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python ... gloo 1000,10000 100 FOLDER

Writes to FOLDER/RANK.json this rank's seconds of each call by number of float32 elements.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

WARMUPS = 5


def seconds(
    reduce: Callable[[], object], barrier: Callable[[], object], clear: Callable[[], object], repeats: int
) -> list[float]:
    """Return how long each call of `reduce` took, after a barrier."""
    times = []
    for _ in range(WARMUPS + repeats):
        clear()
        barrier()
        begin = perf_counter()
        reduce()
        times.append(perf_counter() - begin)
    return times[WARMUPS:]


def of_mpi4py(sizes: list[int], repeats: int) -> dict[int, list[float]]:
    """Time MPI_Allreduce on NumPy arrays, in place, under mpirun."""
    import numpy as np
    from mpi4py import MPI

    world, times = MPI.COMM_WORLD, {}
    for size in sizes:
        values = np.ones(size, np.float32)

        def reduce(values: np.ndarray = values) -> None:
            world.Allreduce(MPI.IN_PLACE, values)

        times[size] = seconds(reduce, world.Barrier, lambda values=values: values.fill(1), repeats)
    return times


def of_torch(backend: str, sizes: list[int], repeats: int) -> dict[int, list[float]]:
    """Time torch.distributed.all_reduce."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == "mpi":
        from mlbench.plugins.mpi.backend import TORCH_NAME as backend
    dist.init_process_group(backend)
    times = {}
    for size in sizes:
        values = torch.ones(size)

        def reduce(values: torch.Tensor = values) -> None:
            dist.all_reduce(values)

        times[size] = seconds(reduce, dist.barrier, lambda values=values: values.fill_(1), repeats)
    dist.barrier()
    dist.destroy_process_group()
    return times


def main(backend: str, sizes: str, repeats: str, folder: str) -> None:
    """Time one rank and write its file."""
    numbers = [int(size) for size in sizes.split(",")]
    if backend == "mpi4py":
        from mpi4py import MPI

        rank, times = MPI.COMM_WORLD.Get_rank(), of_mpi4py(numbers, int(repeats))
    else:
        rank, times = int(os.environ["RANK"]), of_torch(backend, numbers, int(repeats))
    Path(folder, f"{rank}.json").write_text(json.dumps(times))
    if backend != "mpi4py":  # mpirun kills the other ranks when one leaves without MPI_Finalize
        os._exit(0)  # nothing is left to end, and torch's own end may take a second


if __name__ == "__main__":
    main(*sys.argv[1:])

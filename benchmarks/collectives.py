"""Task 0 beside plain loops: its all-reduce, torch.distributed's and, for MPI, mpi4py's under mpirun.

    python benchmarks/collectives.py --rounds 7 --workers 2

Every round runs each side once, in another order. Task 0 is the whole command on a Ray that stays. The time
of a size is the median call of the slowest rank. The table has its median over the rounds, and the median and
range of the ratios of task 0 to the plain loops, round by round. Prints a table of
docs/measurements/communication.md.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from origin import origin

from mlbench.record import format, reader

ROOT = Path(__file__).parents[1]
SIZES = [10**power for power in range(8)]  # elements: task 0's points for task.sizes=9, up to 40 MB
REPEATS = 100
PLAIN = Path(__file__).with_name("plain_collectives.py")
Times = dict[int, float]  # s by elements


def task_0(backend: str, workers: int, root: Path, environment: dict[str, str]) -> Times:
    """Run task 0 and return its medians."""
    overrides = [
        *("task=allreduce", "division=open", "task.sizes=9", f"task.max_elements={SIZES[-1]}"),
        *("task.collectives=[all_reduce]", "task.dtypes=[float32]", f"task.repeats={REPEATS}"),
        *(f"backend={backend}", f"workers={workers}", "hardware.threads_per_worker=1"),
        *("cluster.oversubscribe=true", f"output_root={root}"),
    ]
    before = set(root.glob("*/record.json"))
    command = [sys.executable, "-m", "mlbench.run", *overrides]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    (path,) = set(root.glob("*/record.json")) - before
    rows = [row for row in reader.load(path).table if row["kind"] == "times"]
    return {row["elements"]: row["p50_s"] for row in rows}


def plain(backend: str, workers: int) -> Times:
    """Run the plain loop and return its medians."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        script = [sys.executable, str(PLAIN), backend, ",".join(map(str, SIZES)), str(REPEATS), folder]
        if backend == "mpi4py":
            commands = [(["mpirun", "-n", str(workers), *script], {})]
        else:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
            meeting |= {"WORLD_SIZE": str(workers)}
            commands = [(script, meeting | {"RANK": str(rank)}) for rank in range(workers)]
        running = [subprocess.Popen(command, env=environment | more) for command, more in commands]
        for process in running:
            process.wait(timeout=600)
        ranks = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    assert len(ranks) == workers, f"{backend} gave {len(ranks)} of {workers} ranks"
    return {size: median(map(max, zip(*(rank[str(size)] for rank in ranks), strict=True))) for size in SIZES}


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"XDG_CACHE_HOME": folder, "PYTHONPATH": str(ROOT)}
        cluster = partial(subprocess.run, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        cluster([sys.executable, "-m", "mlbench.cluster", "start"])
        try:
            runs, workers = Path(folder) / "runs", options.workers
            sides: dict[str, Callable[[], Times]] = {
                "mpi, task 0": partial(task_0, "mpi", workers, runs, environment),
                "mpi, torch": partial(plain, "mpi", workers),
                "mpi, mpi4py": partial(plain, "mpi4py", workers),
                "gloo, task 0": partial(task_0, "gloo", workers, runs, environment),
                "gloo, torch": partial(plain, "gloo", workers),
            }
            results: dict[str, list[Times]] = {name: [] for name in sides}
            for number in range(options.rounds):
                for name in random.Random(number).sample(list(sides), len(sides)):
                    results[name].append(sides[name]())
                    print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
        finally:
            cluster([sys.executable, "-m", "mlbench.cluster", "stop"])
    print(origin(__file__, arguments, f"{options.rounds} rounds") + "\n")
    print_table(results)
    return 0


def print_table(results: dict[str, list[Times]]) -> None:
    """Print the medians of every side, and the ratios of task 0 to the plain loops."""
    ratios = [(f"{side.split(',')[0]}, task 0", side) for side in results if not side.endswith("task 0")]
    heads = [*results, *(f"{ours} / {theirs}" for ours, theirs in ratios)]
    print(f"| bytes | {' | '.join(heads)} |")
    print(f"|--:|{'--:|' * len(heads)}")
    for size in SIZES:
        cells = [format.duration(median(times[size] for times in results[name])) for name in results]
        cells += [_ratio(results[ours], results[theirs], size) for ours, theirs in ratios]
        print(f"| {format.with_prefix(4 * size, 'B')} | {' | '.join(cells)} |")


def _ratio(ours: list[Times], theirs: list[Times], size: int) -> str:
    values: list[Any] = [times[size] / other[size] for times, other in zip(ours, theirs, strict=True)]
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

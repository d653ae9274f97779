"""What the phase clocks cost: the loop's own steps of every mini task with stamps and without, interleaved.

    python benchmarks/clocks.py --rounds 40

One worker in one process trains the same batches, a block of steps each way in turn. The ratio of each round
is paired; the interval is a 95 % bootstrap interval of their median. CPU time is what the process computed,
and tells more on a machine that does other work, too. Without stamps the loop asks at every step whether a
heartbeat is due, with sampled stamps in stamped steps only. Prints a table of
docs/measurements/performance.md.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time

import torch
from origin import origin
from steps import TRAINED, Ours, configuration, take

from mlbench.analysis.bootstrap import interval, median
from mlbench.tasks import registry
from mlbench.training.timer import SHORT_STEP_S, PhaseTimer
from mlbench.training.worker import Worker

BLOCK_S = 0.25  # s of a block of steps, about


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"default: {' '.join(TRAINED)}")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(origin(__file__, arguments, f"{options.rounds} rounds") + "\n")
    print("| task | step, ms | stamped | without / with, wall | 95 % | without / with, CPU | 95 % |")
    print("|---|--:|---|--:|---|--:|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tasks or TRAINED:
            print(row(name, Path(folder), options.rounds), flush=True)
    return 0


def row(name: str, root: Path, rounds: int) -> str:
    """Measure one task and return its line."""
    workers = {
        enabled: Worker(seed=1, data_root=root, timer=PhaseTimer(enabled=enabled))
        for enabled in (True, False)
    }
    # One set-up for both: weights that lie elsewhere in memory take other times.
    setup = registry.build(configuration(name, "mini"), workers[True])
    sides = {enabled: Ours(setup, worker) for enabled, worker in workers.items()}
    data = setup.load()
    few = take(setup, data, 5)
    for side in sides.values():
        side.train_steps(few)
    begin = perf_counter()
    sides[False].train_steps(few)
    step_s = (perf_counter() - begin) / len(few)
    if step_s < SHORT_STEP_S:  # as the loop does once it has seen enough steps
        workers[True].timer.sample(step_s)
    steps = take(setup, data, max(2, min(2000, round(BLOCK_S / step_s))))
    ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
    for number in range(rounds + 2):
        spent = {}
        for enabled in sorted(sides, reverse=number % 2 == 1):
            wall, cpu = perf_counter(), process_time()
            sides[enabled].train_steps(steps)
            spent[enabled] = perf_counter() - wall, process_time() - cpu
        if number >= 2:
            ratios["wall"].append(spent[False][0] / spent[True][0])
            ratios["cpu"].append(spent[False][1] / spent[True][1])
    setup.close()
    cells = [name, f"{1e3 * step_s:.3g}", f"1 in {workers[True].timer.stamp_every}"]
    for values in ratios.values():
        ends = interval(values)
        cells += [f"{median(values):.3f}", f"{ends.low:.3f} to {ends.high:.3f}" if ends else ""]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

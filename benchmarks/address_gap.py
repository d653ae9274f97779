"""What it costs that torch's code lies far from Python's in a process's addresses, without Ray.

    python benchmarks/address_gap.py --rounds 5

A process reserves so many GiB of addresses, imports torch, which Linux then places below them, and trains
logistic regression with mlbench's loop, in short steps. The sizes take turns; ratios are paired within a
round, and the interval is a 95 % bootstrap interval of their median.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from origin import origin

from mlbench.analysis.bootstrap import interval, median

GAPS = (0, 1, 2, 3, 4, 5, 8)  # GiB
EPOCHS = 100
TRAIN = """
import mmap, sys
gap = int(sys.argv[1]) and mmap.mmap(-1, int(sys.argv[1]) << 30, mmap.MAP_PRIVATE | 0x4000)  # MAP_NORESERVE
from without_ray import main
main(sys.argv[2:])
"""


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    rates: dict[int, list[float]] = {gap: [] for gap in GAPS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for gap in sorted(GAPS, reverse=number % 2 == 1):
                rates[gap].append(train(gap, folder))
                print(f"{gap} GiB: {rates[gap][-1]:.4g}/s", file=sys.stderr, flush=True)
    print(origin(__file__, arguments, "one thread", f"{options.rounds} rounds") + "\n")
    print("| GiB between | samples/s | of those without | 95 % interval |\n|--:|--:|--:|---|")
    for gap in GAPS:
        ratios = [own / base for own, base in zip(rates[gap], rates[0], strict=True)]
        ends = interval(ratios)
        span = f"{ends.low:.3f} to {ends.high:.3f}" if gap and ends else ""
        print(f"| {gap} | {median(rates[gap]):,.0f} | {median(ratios):.3f} | {span} |")
    return 0


def train(gap: int, folder: str) -> float:
    """Return the samples/s of a process that reserves `gap` GiB first."""
    here = Path(__file__).parent
    overrides = ["task=logreg", f"task.epochs={EPOCHS}", "goal=none", "division=open", f"data_root={folder}"]
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(here.parent), str(here)])
    command = [sys.executable, "-c", TRAIN, str(gap), *overrides]
    done = subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])["samples_per_s"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

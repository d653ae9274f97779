"""What the probe costs the steps of a script: with its hooks and without them, in turns.

    python benchmarks/hooks.py --rounds 20

Runs tests/script/scripts/timed.py as it is, and under the probe with a collector in this process, as
mlbench.measure does; which of the two comes first alternates. The number of its model's layers is chosen so
that a step without hooks takes about 1 ms and 40 ms. Prints the median step of each kind, and the median of
the rounds' ratios with its 95 % interval.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from origin import origin

from mlbench.analysis.bootstrap import interval, median
from mlbench.script import child
from mlbench.script.collector import Collector

SCRIPT = Path(__file__).parents[1] / "tests" / "script" / "scripts" / "timed.py"
STEPS_MS = (1.0, 40.0)
RUN_S = 4.0  # s of steps in a run
ROUGH = 1.25  # by which factor a step may miss the length that was asked for


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    print(origin(__file__, arguments) + "\n", flush=True)
    print("| step without hooks, ms | with hooks, ms | with / without | 95 % interval | rounds |")
    print("|" + "---|" * 5)
    for step_ms in STEPS_MS:
        layers = fitting(step_ms / 1e3)
        rounds = [pair(layers, round(1e3 * RUN_S / step_ms), first=n % 2 == 0) for n in range(options.rounds)]
        print(row(rounds), flush=True)
    return 0


def fitting(step_s: float) -> int:
    """Return the layers of a model whose step takes about `step_s`."""
    layers = 1
    while True:
        seconds = run(layers, 50, hooks=False)
        if step_s / ROUGH <= seconds <= step_s * ROUGH:
            return layers
        layers = max(1, round(layers * step_s / seconds))


def pair(layers: int, steps: int, *, first: bool) -> tuple[float, float]:
    """Return the seconds of a step without hooks and with them; `first`: those without come first."""
    seconds = {hooks: run(layers, steps, hooks=hooks) for hooks in (not first, first)}
    return seconds[False], seconds[True]


def run(layers: int, steps: int, *, hooks: bool) -> float:
    """Run the script; return the median seconds of a step, as it prints them."""
    collector = Collector("127.0.0.1", metric="none", goal=None)
    variables = child.variables(collector.address, collector.token) if hooks else {}
    command = [sys.executable, str(SCRIPT), str(layers), str(steps)]
    try:
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    finally:
        collector.close()
    if hooks and len(collector.ranks[0].steps) != steps:
        raise SystemExit(f"{len(collector.ranks[0].steps)} of {steps} steps were seen")
    return float(re.findall(r"step (\S+)", done.stdout)[0])


def row(rounds: Sequence[tuple[float, float]]) -> str:
    """Return a line of the table."""
    without, with_hooks = (median([each[kind] for each in rounds]) for kind in (0, 1))
    ratios = [hooks / plain for plain, hooks in rounds]
    ends = interval(ratios)
    shown = f"{ends.low:.4f} to {ends.high:.4f}" if ends else ""
    cells = f"{1e3 * without:.3f} | {1e3 * with_hooks:.3f} | {median(ratios):.4f} | {shown}"
    return f"| {cells} | {len(rounds)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What mlbench.measure costs training loops on a GPU, and what it makes of them: alone and measured in turn.

    python benchmarks/gpu_scripts.py --minutes 9     on a machine with one GPU
    python benchmarks/gpu_scripts.py --minutes 2 --dry-run    on a CPU: small models, the same code

Runs each loop of benchmarks/scripts/gpu_loops.py by itself and under `python -m mlbench.measure`, in turn
and in an order that changes, as often as the minutes allow. Prints the rates that the loops print
themselves, their ratio, the exit codes, and at the end the card of each measured run. Needs what
benchmarks/gpu.py needs.

Exit code: 0; 1, a command failed or gave no card; 75, there was no time for every loop.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import gpu_wheels

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "scripts" / "gpu_loops.py"
LOOPS = ("trainer", "compiled_gpt", "imagenet", "graphs")
SECONDS, DRY_SECONDS = 15.0, 2.0  # s that a loop is timed for
MOST_S = 150.0  # s that a command may take, compilation and start included
TIME_OVER = 75  # exit code: EX_TEMPFAIL of sysexits.h


def main(arguments: Sequence[str]) -> int:
    """Run the loops in turn and print the table and the cards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--dry-run", action="store_true", help="on a CPU: small models and a few seconds")
    parser.add_argument("loops", nargs="*", metavar="LOOP", help=f"default: {' '.join(LOOPS)}")
    options = parser.parse_args(arguments)
    loops, end = options.loops or LOOPS, time.perf_counter() + 60 * options.minutes
    rates: dict[tuple[str, bool], list[float]] = {(loop, way): [] for loop in loops for way in (False, True)}
    codes: dict[str, list[int]] = {loop: [] for loop in loops}
    cards: dict[str, str] = {}
    longest, turn = 0.0, 0
    # A loop's two ways change places from turn to turn, so that a card that warms up favours neither.
    while time.perf_counter() + longest < end:
        loop, measured_first = loops[turn % len(loops)], (turn // len(loops)) % 2 == 1
        begin = time.perf_counter()
        for measured in (measured_first, not measured_first):
            code, output = run(loop, measured=measured, dry_run=options.dry_run)
            rate = re.search(r"^rate (\S+)", output, re.MULTILINE)
            codes[loop].append(code)
            if rate:
                rates[loop, measured].append(float(rate[1]))
            if measured:
                cards[loop] = output
            way = "measured" if measured else "alone"
            print(f"{loop} {way}: exit code {code}, {rate[0] if rate else 'no rate'}", flush=True)
        longest, turn = max(longest, time.perf_counter() - begin), turn + 1
    print(table(loops, rates, codes))
    for loop, card in cards.items():
        print(f"\n## {loop}\n\n{card}")
    if any(map(any, codes.values())) or any("time" not in card for card in cards.values()):
        return 1
    return 0 if all(rates.values()) else TIME_OVER


def run(loop: str, *, measured: bool, dry_run: bool) -> tuple[int, str]:
    """Run a loop; return the exit code and what it printed, with its card if it was measured."""
    command = [sys.executable, str(SCRIPT), loop, str(DRY_SECONDS if dry_run else SECONDS)]
    paths = [str(ROOT), *gpu_wheels.unpacked(), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    if dry_run:
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        if measured:
            settings = [f"output_root={folder}", "force=true", "cluster.exclusive=false"]
            command = [sys.executable, "-m", "mlbench.measure", *settings, "--", *command]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=MOST_S, cwd=folder
            )
        except subprocess.TimeoutExpired:
            return TIME_OVER, f"it took more than {MOST_S:.0f} s"
        return done.returncode, done.stdout + done.stderr


def table(
    loops: Sequence[str], rates: dict[tuple[str, bool], list[float]], codes: dict[str, list[int]]
) -> str:
    """Return a line for each loop: the median rates, measured over alone, how often, the exit codes."""
    lines = ["", "| loop | alone, samples/s | measured, samples/s | ratio | turns | exit codes |"]
    lines.append("|---|--:|--:|--:|--:|---|")
    for loop in loops:
        alone, measured = rates[loop, False], rates[loop, True]
        numbers = ["", "", ""]
        if alone and measured:
            numbers = [f"{median(alone):.4g}", f"{median(measured):.4g}"]
            numbers.append(f"{median(measured) / median(alone):.3f}")
        ends = ", ".join(map(str, sorted(set(codes[loop]))))
        lines.append(f"| {loop} | {' | '.join(numbers)} | {min(len(alone), len(measured))} | {ends} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

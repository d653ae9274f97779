"""Duels of real scripts on this machine: `python benchmarks/real_duels.py --equal 40 --one-percent 10`.

A is tests/script/scripts/timed.py with 100 layers, B with 101, which is 1 % more work; equal duels run A
against itself. Prints a row a duel, with what was decided, p, pairs and minutes, and how many were wrong.
An equal duel seldom ends before its `--equal-time`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "tests" / "script" / "scripts" / "timed.py"
LAYERS = 100


def duel(layers: int | None, steps: str, compare: str, max_time: str) -> dict[str, object]:
    """Run one duel by the command; without `layers` of A against itself. Return its answer and minutes."""
    a = [sys.executable, str(SCRIPT), str(LAYERS), steps]
    b = [] if layers is None else ["---", sys.executable, str(SCRIPT), str(layers), steps]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--json", *(["--aa"] if layers is None else []), f"output_root={folder}/runs"]
        line = [sys.executable, "-m", "mlbench.duel", f"compare={compare}", f"max_time={max_time}", *options]
        begun = time.perf_counter()
        done = subprocess.run([*line, "--", *a, *b], stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout) | {"minutes": (time.perf_counter() - begun) / 60}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--equal", type=int, default=40)
    parser.add_argument("--one-percent", type=int, default=10)
    parser.add_argument("--steps", default="60", help="of a run: with more of them fewer pairs fit")
    parser.add_argument("--compare", default="step_p5", metavar="NAME")
    parser.add_argument("--max-time", default="15min")
    parser.add_argument("--equal-time", default="15min")
    words = parser.parse_args()
    print("| commands | decision of B | p | pairs | left out | minutes |\n|---|---|--:|--:|--:|--:|")
    wrong = {"equal": 0, "1 % slower": 0}
    kinds = (
        ("equal", None, words.equal, words.equal_time),
        ("1 % slower", LAYERS + 1, words.one_percent, words.max_time),
    )
    for name, layers, count, longest in kinds:
        for _ in range(count):
            found = duel(layers, words.steps, words.compare, longest)
            decision, left_out = found["decision"], len(found["left_out"])  # type: ignore[arg-type]
            wrong[name] += decision is not None if layers is None else decision != "slower"
            row = (name, decision, found["p"], found["pairs"], left_out, f"{found['minutes']:.1f}")
            print("|", " | ".join(map(str, row)), "|", flush=True)
    print(f"\nequal commands called different: {wrong['equal']} of {words.equal}")
    print(f"1 % not shown: {wrong['1 % slower']} of {words.one_percent}")


if __name__ == "__main__":
    main()

"""Whether the rates that scripts print of themselves are those of their records, with 1 and 2 workers.

    python benchmarks/printed_rates.py

Runs each of benchmarks/scripts, which know nothing of mlbench, under mlbench.measure with torchrun and under
task=script, one thread a worker, and prints both rates, in samples/s. Exit code 1: two differ by over 3 %.
"""

import sys

from origin import ROOT, origin
from plain_script import rate, run

SCRIPTS = ("imagenet", "nanogpt", "with_accelerate", "with_lightning", "fsdp2")
FOLDER = ROOT / "benchmarks" / "scripts"
LIMIT = 0.03  # share of the printed rate


def main() -> int:
    """Measure and print the table."""
    print(origin(__file__, []) + "\n")
    print(
        "| script | workers | printed under `measure` | measured | printed under `task=script` | measured |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    worst = 0.0
    for script in SCRIPTS:
        for workers in (1, 2):
            pairs = [rates(command(script, workers, ray=ray)) for ray in (False, True)]
            worst = max(worst, *(abs(measured / printed - 1) for printed, measured in pairs))
            cells = [f"{value:,.1f}" for pair in pairs for value in pair]
            print(f"| {script} | {workers} | {' | '.join(cells)} |", flush=True)
    print(f"\nThe greatest difference is {worst:.1%}.")
    return int(worst > LIMIT)


def command(script: str, workers: int, *, ray: bool) -> list[str]:
    """Return the words after `python -m` that measure a script."""
    path = str(FOLDER / f"{script}.py")
    if ray:
        words = ["task=script", f"task.path={path}", f"workers={workers}", "hardware.threads_per_worker=1"]
        return ["mlbench.run", *words]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    return ["mlbench.measure", "--", *launcher, path]


def rates(words: list[str]) -> tuple[float, float]:
    """Run a command; return the rate that its script printed and that of its record."""
    record, output = run(words, {"PYTHONPATH": str(ROOT / "benchmarks"), "OMP_NUM_THREADS": "1"})
    return rate(output), record.samples_per_s or 0.0


if __name__ == "__main__":
    sys.exit(main())

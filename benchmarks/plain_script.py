"""Whether a plain script measures what the suite's own loop does: ResNet-20 at mini scale, in turns.

    python benchmarks/plain_script.py --rounds 5

Each round runs `task=resnet20 launcher=torchrun`, and tests/script/scripts/resnet20.py under mlbench.measure
with torchrun, on two workers. Prints the rate and a step's phases of both, medians over the rounds, and the
rate that the script printed itself.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from origin import origin

from mlbench.analysis.bootstrap import median
from mlbench.config.compose import compose
from mlbench.record.reader import load
from mlbench.record.record import Record
from mlbench.tasks import registry

SCRIPT = Path(__file__).parents[1] / "tests" / "script" / "scripts" / "resnet20.py"
WORKERS = 2
EPOCHS = 20  # some 16 s: what a run does once at its first step is a few tenths of one
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
OWN = ["mlbench.run", "task=resnet20", "launcher=torchrun", f"workers={WORKERS}", "goal=none"]


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args(arguments)
    print(origin(__file__, arguments) + "\n", flush=True)
    root = Path("data").absolute()
    experiment = compose(["task=resnet20"])
    folder = registry.load("resnet20").prepare(experiment.task, root)
    script = [
        "mlbench.measure",
        "--",
        sys.executable,
        *LAUNCHER,
        str(SCRIPT),
        str(folder),
        str(options.epochs),
    ]
    own = [*OWN, f"data_root={root}", f"task.epochs={options.epochs}", "division=open"]
    loop, plain, printed = [], [], []
    for _ in range(options.rounds):
        loop.append(run(own)[0])
        record, output = run(script)
        plain.append(record)
        printed.append(float(re.findall(r"^rate (\S+)", output, re.MULTILINE)[0]))
    print(table(loop, plain, printed))
    return 0


def run(line: Sequence[str]) -> tuple[Record, str]:
    """Run a command of mlbench; return its record and what it printed."""
    module, *arguments = line
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            module,
            f"output_root={folder}",
            "cluster.exclusive=false",
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        (path,) = Path(folder).glob("*/record.json")
        return load(path), done.stdout


def table(loop: Sequence[Record], plain: Sequence[Record], printed: Sequence[float]) -> str:
    """Return the table: a line for the rate, and one for each phase of a step."""
    lines = ["| | suite's loop | plain script | ratio |", "|---|---|---|---|"]
    rates = [median([run.samples_per_s or 0.0 for run in runs]) for runs in (loop, plain)]
    lines.append(f"| images/s | {rates[0]:.0f} | {rates[1]:.0f} | {rates[1] / rates[0]:.3f} |")
    lines.append(f"| images/s as printed | | {median(printed):.0f} | {median(printed) / rates[0]:.3f} |")
    for name in loop[0].phases:
        means = [median([1e3 * run.phases[name].mean / run.steps for run in runs]) for runs in (loop, plain)]
        ratio = f"{means[1] / means[0]:.3f}" if means[0] else ""
        lines.append(f"| {name}, ms | {means[0]:.3f} | {means[1]:.3f} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

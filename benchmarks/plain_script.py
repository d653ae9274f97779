"""Whether a plain script measures what the suite's own loop does: ResNet-20 at mini scale, in turns.

    python benchmarks/plain_script.py --rounds 5
    python benchmarks/plain_script.py --rounds 5 --malloc default

Each round runs `task=resnet20 launcher=torchrun`, tests/script/scripts/resnet20.py under mlbench.measure with
torchrun, and the same script with torchrun alone, on two workers. Prints the rate and a step's phases of the
first two, medians over the rounds, and the rates that the script printed itself.

The script never validates, so glibc gives the memory of its steps back to the kernel and takes it again: its
environment forbids that, as that of the references does (benchmarks/runs.py), but with --malloc default.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from glibc import KEEP_FREED
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
    parser.add_argument("--malloc", choices=["keep", "default"], default="keep")
    options = parser.parse_args(arguments)
    print(origin(__file__, arguments) + "\n", flush=True)
    root = Path("data").absolute()
    experiment = compose(["task=resnet20"])
    folder = registry.load("resnet20").prepare(experiment.task, root)
    alone = [sys.executable, *LAUNCHER, str(SCRIPT), str(folder), str(options.epochs)]
    own = [*OWN, f"data_root={root}", f"task.epochs={options.epochs}", "division=open"]
    environment = KEEP_FREED if options.malloc == "keep" else {}
    loop, plain, printed, unmeasured = [], [], [], []
    for _ in range(options.rounds):
        loop.append(run(own, {})[0])
        record, output = run(["mlbench.measure", "--", *alone], environment)
        plain.append(record)
        printed.append(rate(output))
        unmeasured.append(rate(call(alone, environment)))
    print(table(loop, plain, printed, unmeasured))
    return 0


def run(line: Sequence[str], environment: Mapping[str, str]) -> tuple[Record, str]:
    """Run a command of mlbench; return its record and what it printed, its run's logs included."""
    module, *arguments = line
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"output_root={folder}", "cluster.exclusive=false"]
        output = call([sys.executable, "-m", module, *settings, *arguments], environment)
        (path,) = Path(folder).glob("*/record.json")
        logs = [log.read_text() for log in path.parent.glob("*.log")]
        return load(path), "\n".join([output, *logs])


def call(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command with more variables; return what it printed, or end with it where the command fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def rate(output: str) -> float:
    """Return the samples/s that the script printed."""
    return float(re.findall(r"^rate (\S+)", output, re.MULTILINE)[0])


def table(
    loop: Sequence[Record], plain: Sequence[Record], printed: Sequence[float], unmeasured: Sequence[float]
) -> str:
    """Return the table: lines for the rates, and one for each phase of a step."""
    lines = ["| | suite's loop | plain script | ratio |", "|---|---|---|---|"]
    own, seen = (median([run.samples_per_s or 0.0 for run in runs]) for runs in (loop, plain))
    rates = {"images/s": seen, "printed": median(printed), "printed, without mlbench": median(unmeasured)}
    for name, value in rates.items():
        lines.append(f"| {name} | {own:.0f} | {value:.0f} | {value / own:.3f} |")
    for name in loop[0].phases:
        means = [median([1e3 * run.phases[name].mean / run.steps for run in runs]) for runs in (loop, plain)]
        ratio = f"{means[1] / means[0]:.3f}" if means[0] else ""
        lines.append(f"| {name}, ms | {means[0]:.3f} | {means[1]:.3f} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

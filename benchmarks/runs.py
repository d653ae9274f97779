"""Whole runs of every training task: `python -m mlbench.run` beside a plain torchrun script.

    python benchmarks/runs.py --rounds 10              the table of docs/measurements/performance.md
    python benchmarks/runs.py --rounds 5 --workers 2 resnet20 layout=channels_first
    python benchmarks/runs.py --rounds 5 --workers 2 --without-ray resnet20

Every round runs mlbench (Ray Train, all clocks on) and the reference (benchmarks/references, torchrun
and DDP over gloo) one after the other, with the same hyper-parameters, data, threads and epochs; a word
name=value adds a variant of the reference, and --without-ray mlbench's own loop under torchrun, which tells
what the rest of a run takes from it. Rates are samples a second of all workers over the epochs, data
included; start-up and validation are apart. Ratios are paired within a round; the interval is a 95 %
bootstrap interval of their median. Also prints the parts of mlbench's start-up.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glibc import KEEP_FREED
from origin import origin

from mlbench.analysis.bootstrap import interval, median
from mlbench.config.compose import choices, compose
from mlbench.record.reader import load
from mlbench.record.record import Record
from mlbench.tasks import registry

ROOT = Path(__file__).parents[1]
TRAINED = [name for name in choices("task") if compose([f"task={name}"]).target is not None]
EPOCHS = {"resnet20": 10, "resnet50": 5, "logreg": 200, "awdlstm": 3, "gnmt": 2, "transformer": 3, "gpt": 1}
WITHOUT_RAY = "mlbench without Ray"
LATEST_VALIDATION = ("gnmt", "transformer")  # a search for translations: only one, at the end


def main(arguments: Sequence[str]) -> int:
    """Measure and print the tables; exit code 1 where a task misses its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--workers", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2]
    )
    parser.add_argument("--without-ray", action="store_true", help="also mlbench's loop under torchrun")
    parser.add_argument("--share", type=float, default=1.0, help="of the default epochs")
    parser.add_argument("names", nargs="*", metavar="TASK|name=value", help=f"default: {' '.join(TRAINED)}")
    options = parser.parse_args(arguments)
    tasks = [name for name in options.names if "=" not in name] or TRAINED
    variants = ["", *(name for name in options.names if "=" in name)]
    variants += [WITHOUT_RAY] if options.without_ray else []
    rows, worst, records = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            for workers in options.workers:
                rates = measure(task, workers, variants, options, Path(folder), records)
                for variant in variants:
                    ratios = [
                        own / theirs for own, theirs in zip(rates["mlbench"], rates[variant], strict=True)
                    ]
                    rows.append(row(task, workers, variant, ratios, rates))
                    print(rows[-1], file=sys.stderr, flush=True)
                    if not variant:
                        worst.append(median(ratios))
    print(origin(__file__, arguments, "one thread a worker", f"{options.rounds} rounds") + "\n")
    print(
        "| task | workers | reference | mlbench / reference | 95 % interval | mlbench, /s | reference, /s |"
    )
    print("|---|--:|---|--:|---|--:|--:|")
    print("\n".join(rows))
    mean = math.exp(sum(map(math.log, worst)) / len(worst))
    print(f"\nGeometric mean {mean:.3f}, least {min(worst):.3f}.\n")
    print("| start-up part | median s |\n|---|--:|")
    for part in records[0].startup.parts():
        print(
            f"| {part} | {median([record.startup.parts().get(part, math.nan) for record in records]):.2f} |"
        )
    print(f"| all | {median([record.startup_time or math.nan for record in records]):.2f} |")
    return 0 if mean >= 0.98 and min(worst) >= 0.95 else 1


def measure(
    task: str,
    workers: int,
    variants: Sequence[str],
    options: argparse.Namespace,
    folder: Path,
    records: list[Record],
) -> dict[str, list[float]]:
    """Return the rates of mlbench and of every variant of the reference, round by round."""
    config = compose([f"task={task}", f"workers={workers}", "goal=none"]).task
    data = registry.load(task).prepare(config, folder / "data")
    (folder / "config.json").write_text(config.model_dump_json())
    epochs = max(1, round(EPOCHS[task] * options.share))
    rates: dict[str, list[float]] = {"mlbench": [], **{variant: [] for variant in variants}}
    for number in range(options.rounds):
        for side in sorted(rates, reverse=number % 2 == 1):
            if side == "mlbench":
                records.append(run_mlbench(task, workers, epochs, folder))
                rates[side].append(records[-1].samples_per_s or math.nan)
            elif side == WITHOUT_RAY:
                arguments = overrides(task, workers, epochs, folder)
                rates[side].append(torchrun(workers, "without_ray", *arguments))
            else:
                arguments = ["--config", str(folder / "config.json"), "--data", str(data)]
                arguments += ["--epochs", str(epochs), *([side] if side else [])]
                rates[side].append(torchrun(workers, f"references.{task}", *arguments))
            print(
                f"{task} x {workers} {side or 'reference'}: {rates[side][-1]:.4g}/s",
                file=sys.stderr,
                flush=True,
            )
    return rates


def overrides(task: str, workers: int, epochs: int, folder: Path) -> list[str]:
    """Return what a measured run is configured with."""
    settings = [
        f"task={task}",
        f"workers={workers}",
        f"task.epochs={epochs}",
        "hardware.threads_per_worker=1",
    ]
    settings += ["goal=none", "division=open", "force=true", f"data_root={folder}/data"]
    settings += [f"output_root={folder}", f"tracking_uri=sqlite:///{folder}/mlflow.db"]
    return settings + (["task.validate_at=[1.0]"] if task in LATEST_VALIDATION else [])


def run_mlbench(task: str, workers: int, epochs: int, folder: Path) -> Record:
    """Train with `python -m mlbench.run`; return the record."""
    _call([sys.executable, "-m", "mlbench.run", *overrides(task, workers, epochs, folder)])
    return load(max(folder.glob("*/record.json"), key=lambda path: path.stat().st_mtime))


def torchrun(workers: int, module: str, *arguments: str) -> float:
    """Train with a module under torchrun; return samples/s. The word malloc=default leaves glibc as it is."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={workers}", "--standalone"]
    done = _call(
        [*command, "-m", module, *arguments], **({} if "malloc=default" in arguments else KEEP_FREED)
    )
    return json.loads(done.splitlines()[-1])["samples_per_s"]


def _call(command: list[str], **more: str) -> str:
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **more}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def row(task: str, workers: int, variant: str, ratios: Sequence[float], rates: dict[str, Any]) -> str:
    """Return a row of the table."""
    ends = interval(ratios)
    between = f"{ends.low:.3f} to {ends.high:.3f}" if ends else ""
    own, theirs = (f"{median(rates[side]):.4g}" for side in ("mlbench", variant))
    cells = (task, workers, variant or "fastest", f"{median(ratios):.3f}", between, own, theirs)
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

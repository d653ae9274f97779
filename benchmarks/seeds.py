"""How reliably and how fast a task reaches its goal: one run a seed, one row a run.

    python benchmarks/seeds.py --seeds 10 task=resnet20
    python benchmarks/seeds.py --seeds 10 task=resnet20 task.precision=bf16
    python benchmarks/seeds.py --seeds 10 task=gpt framework=jax

Prints the table of docs/measurements/results.md. Every run counts: one that missed the goal stands in the
table. A seed that was run by the same code on this machine is not run again, so that a series can be made
in parts.
"""

import argparse
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlbench.config.compose import compose
from mlbench.config.identity import key
from mlbench.config.plugins import TORCH
from mlbench.launch.cache import obstacle
from mlbench.record.reader import find_all
from mlbench.record.record import Record

ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str]) -> int:
    """Run the seeds and print the table; exit code 1 if fewer than 9 in 10 reached the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1, help="the first seed; the others follow it")
    parser.add_argument("--output", type=Path, default=Path("runs"), help="output_root of the runs")
    parser.add_argument("overrides", nargs="*", help="name=value overrides of the experiment")
    options = parser.parse_args(arguments)
    output, records = options.output.absolute(), []
    for seed in range(options.first, options.first + options.seeds):
        overrides = [*options.overrides, f"seed={seed}", f"output_root={output}"]
        done = subprocess.run(
            [sys.executable, "-m", "mlbench.run", *overrides], cwd=ROOT, capture_output=True, text=True
        )
        trial = (key(compose(overrides)), seed)
        runs = find_all(output, [trial])[trial]
        attempts = [run for run in runs if obstacle(run) is None]
        if not attempts:
            raise SystemExit(f"seed {seed} left no record:\n{done.stdout}\n{done.stderr}")
        records += attempts
        print(row(attempts[-1]), file=sys.stderr, flush=True)
    print(table(records))
    reached = sum(record.status == "goal_reached" for record in records)
    return 0 if reached >= 0.9 * len(records) else 1


def table(records: Sequence[Record]) -> str:
    """Return the runs and their summary as Markdown."""
    first = records[0]
    node, reached = first.nodes[0], [r for r in records if r.time_to_accuracy is not None]
    missed = [math.inf] * (len(records) - len(reached))  # as long as it takes to the goal (RULES.md)
    task, threads, git = first.experiment.task, node.threads_per_worker, first.software.git
    framework, precision = first.experiment.framework, getattr(task, "precision", "fp32")
    ways = [way for way in (framework, precision) if way not in (TORCH, "fp32")]
    usual = compose([f"task={task.name}", f"scale={first.experiment.scale}"]).task.dataset
    name = task.name + ("" if task.dataset == usual else f" on {task.dataset}")
    if ways:
        name += f" in {' and '.join(ways)}"
    lines = [
        f"### {name}, {first.experiment.scale}, goal {first.goal}",
        "",
        f"{first.workers} workers with {threads} thread(s) each on {node.cpu_model}, "
        f"{node.usable_cpus} CPUs; commit {git.sha[:7] if git else 'unknown'}, "
        f"{framework} {first.software.packages[framework]}, {first.started_at[:10]}, n = {len(records)}, "
        f"{len(reached)} reached the goal.",
        "",
        "| seed | status | epochs | time to accuracy, s | best | start-up, s | data wait, % |",
        "|--:|---|--:|--:|--:|--:|--:|",
        *map(row, records),
    ]
    if reached:
        times = np.median(np.array([*(r.time_to_accuracy for r in reached), *missed]))
        epochs = np.median(np.array([*(r.epochs for r in reached), *missed]))
        lines.append(
            f"| median | | {epochs:g} | {times:.1f} | | "
            f"{np.median([r.startup_time for r in records if r.startup_time]):.1f} | "
            f"{np.median([data_wait(r) for r in records]):.1f} |"
        )
    return "\n".join(lines)


def row(record: Record) -> str:
    """Return one run as a row."""
    seconds = "" if record.time_to_accuracy is None else f"{record.time_to_accuracy:.1f}"
    best = "" if record.best is None else f"{record.best:.2f}"
    startup = "" if record.startup_time is None else f"{record.startup_time:.1f}"
    return (
        f"| {record.seed} | {record.status} | {record.epochs:g} | {seconds} | {best} | {startup} | "
        f"{data_wait(record):.1f} |"
    )


def data_wait(record: Record) -> float:
    """Return the share of data_wait in the time of the steps, %; NaN without one."""
    means = {name: spread.mean for name, spread in record.phases.items()}
    return 100 * means["data_wait"] / math.fsum(means.values()) if means else math.nan


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

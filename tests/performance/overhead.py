"""What Ray Train and our own clocks cost: the same task as a plain loop, under torchrun, and under Ray Train.

    python tests/performance/overhead.py --rounds 10 --workers 2 task=resnet20

Four ways to train the same epochs of the same data, interleaved round by round so that a slow minute of
the machine hits all of them:

- plain: one process, one worker's batch, a minimal loop in bare PyTorch; no DDP, no clocks
- torchrun: the timed loop under torch.distributed.run with DDP over gloo
- ray: the same under Ray Train, as `python -m mlbench.run` does it
- ray_off: as ray, with phase_timing=false

Throughput is samples a second and worker over the time from the first touch of data to the end of the last
validation. Ratios are paired within a round; the interval is a 95 % bootstrap interval of their median.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WAYS = ("plain", "torchrun", "ray", "ray_off")
RATIOS = (("ray", "torchrun"), ("ray", "ray_off"), ("torchrun", "plain"))
RESAMPLES = 10_000  # bootstrap resamples


def main(arguments: Sequence[str]) -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--as", dest="way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help="name=value words of the experiment")
    options = parser.parse_args(arguments)
    words = [*options.words, "goal=none", "division=open", f"task.epochs={options.epochs}"]
    if options.way:
        answer = {"plain": train_plain, "torchrun": train_under_torchrun}[options.way](words)
        if answer:
            options.answer.write_text(json.dumps(answer))
        return 0
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            order = WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]
            rounds.append({way: measure(way, words, options, Path(folder)) for way in order})
            rates = ", ".join(f"{way} {rounds[-1][way]['rate']:.1f}" for way in WAYS)
            print(f"round {number + 1}: samples/s and worker: {rates}", file=sys.stderr, flush=True)
    report(rounds, options)
    return 0


def measure(way: str, words: list[str], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train once in the given way in processes of its own."""
    again = [__file__, "--as", way, "--epochs", str(options.epochs)]
    answer = folder / "answer.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if way == "plain":
        command = [sys.executable, *again, "--answer", str(answer), *options.words]
    elif way == "torchrun":
        run = ["-m", "torch.distributed.run", f"--nproc-per-node={options.workers}", "--standalone"]
        command = [sys.executable, *run, *again, "--answer", str(answer), *options.words]
    else:
        extra = ["hardware.threads_per_worker=1", f"workers={options.workers}", f"output_root={folder}"]
        extra += [f"phase_timing={str(way == 'ray').lower()}", f"tracking_uri=sqlite:///{folder}/mlflow.db"]
        command = [sys.executable, "-m", "mlbench.run", *words, *extra]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stdout}\n{done.stderr}")
    if way in ("plain", "torchrun"):
        return json.loads(answer.read_text())
    from mlbench.experiment.record import load

    record = load(max(folder.glob("*/record.json"), key=lambda path: path.stat().st_mtime))
    rate = record.samples / record.validations[-1].elapsed / options.workers
    return {"rate": rate, "startup": record.startup.parts(), "startup_time": record.startup_time}


def train_plain(words: list[str]) -> dict[str, Any]:
    """Train one worker's share with a loop that does nothing but train."""
    import torch

    from mlbench.experiment.clock import monotonic
    from mlbench.tasks import registry
    from mlbench.training.worker import Worker

    torch.set_num_threads(1)
    task, worker = _task(words, Worker(seed=1))
    setup = registry.build(task, worker)
    begin, step, samples = monotonic(), 0, 0
    data = setup.load()
    for epoch in range(setup.epochs):
        setup.model.train()
        for micro_batches in setup.steps(data, epoch):
            setup.before_step(step)
            for batch in micro_batches:
                setup.loss(setup.forward(setup.model, batch), batch).backward()
                samples += setup.samples(batch)
            setup.optimizer.step()
            setup.optimizer.zero_grad()
            step += 1
        setup.model.eval()
        with torch.no_grad():
            setup.after_validation(setup.validate(setup.model, data))
    rate = samples / (monotonic() - begin)
    setup.close()
    return {"rate": rate}


def train_under_torchrun(words: list[str]) -> dict[str, Any] | None:
    """Train as one rank of torch.distributed.run; rank 0 answers."""
    import torch
    import torch.distributed as dist

    from mlbench.tasks import registry
    from mlbench.training.worker import Worker

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    control = dist.new_group(backend="gloo")
    assert isinstance(control, dist.ProcessGroup)
    rank, size = dist.get_rank(), dist.get_world_size()
    worker = Worker(rank=rank, world_size=size, local_rank=rank, seed=1, control=control)
    task, worker = _task(words, worker)
    outcome = registry.run(task, worker)
    samples = worker.sum([sum(segment.samples for segment in outcome.phase_times)]).item()
    dist.destroy_process_group()
    return {"rate": samples / outcome.elapsed / size} if rank == 0 else None


def _task(words: list[str], worker: Any) -> tuple[Any, Any]:
    from mlbench.experiment.config import compose

    experiment = compose(words)
    worker.data_root = experiment.data_root.absolute()
    return experiment.task, worker


def report(rounds: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the tables of docs/performance.md."""
    import numpy as np

    random = np.random.default_rng(0)
    print(f"\n{len(rounds)} rounds, {options.workers} workers, {options.epochs} epochs, {options.words}\n")
    print("| throughput ratio | median | 95 % interval |\n|---|--:|---|")
    for above, below in RATIOS:
        ratios = np.array([r[above]["rate"] / r[below]["rate"] for r in rounds])
        picks = random.choice(ratios, (RESAMPLES, len(ratios)))
        low, high = np.quantile(np.median(picks, axis=1), [0.025, 0.975])
        print(f"| {above} / {below} | {np.median(ratios):.3f} | {low:.3f} to {high:.3f} |")
    print("\n| start-up part | median s |\n|---|--:|")
    started = [r[way] for r in rounds for way in ("ray", "ray_off")]
    for part in started[0]["startup"]:
        print(f"| {part} | {np.median([s['startup'][part] for s in started]):.2f} |")
    print(f"| all | {np.median([s['startup_time'] for s in started]):.2f} |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

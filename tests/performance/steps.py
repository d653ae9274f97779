"""What the timed loop and the tasks' models cost: our steps against plain PyTorch ones on the same batches.

    python tests/performance/steps.py --rounds 10 --scale mini
    python tests/performance/steps.py --rounds 5 --scale official gnmt transformer

- ours: what the task hands to the loop, through the loop's own `train_step` with the real clock
- plain: tests/performance/plain, which builds the same model of torch's own layers and measures nothing

A round runs the same steps both ways, in turn first; the ratio is paired within a round. With --cpu-time
seconds are those that the process computed, for a machine that does other work, too. Official data are not
needed: the models and recipes are the official ones, the batches are stand-ins of the same format and
shape, fewer a step, and the table says what was cut. Prints a part of docs/performance.md.
"""

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain, count, islice
from pathlib import Path
from time import process_time
from typing import Any
from unittest import mock

import pyarrow as pa
import torch
from plain import Plain, build

from mlbench.analysis.bootstrap import interval, median
from mlbench.clusters import node
from mlbench.experiment.clock import iso, monotonic, wall
from mlbench.experiment.config import choices, compose
from mlbench.tasks import registry
from mlbench.training import loop
from mlbench.training.setup import TrainingSetup
from mlbench.training.worker import Worker

BLOCK_S = 1.0  # s that the steps of one side and round take together, about
MOST_STEPS = 2_000  # of a round
Clock = Callable[[], float]  # s
WARM_UP = 2  # rounds that are not counted
TRAINED = [name for name in choices("task") if compose([f"task={name}"]).target is not None]

# What differs from the official configuration, so that a step takes seconds on two cores (2026-11-21).
CUTS: dict[str, dict[str, Any]] = {
    "logreg": {"dataset": "epsilon_like"},
    "resnet20": {"dataset": "digits"},
    "resnet50": {"dataset": "shapes", "batch_size": 8},
    "awdlstm": {"dataset": "agreement", "batch_size": 8},
    "gnmt": {"dataset": "cipher", "global_batch_size": 16, "chunks": 1},
    "transformer": {"dataset": "cipher", "global_batch_size": 640, "chunks": 1},
}
VOCABULARY = {"awdlstm": 33_278, "gnmt": 32_320, "transformer": 33_712}  # words of the official data sets


@dataclass(frozen=True)
class Measured:
    """Seconds a step of both sides in every round, and what a step was."""

    ours: list[float]
    plain: list[float]
    steps: int  # of a round
    batch: float  # samples of a step, mean
    unit: str


def main(arguments: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--scale", choices=("mini", "official"), default="mini")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="count the process's CPU seconds")
    parser.add_argument("--data", type=Path, help="data_root of prepared data; default: made anew")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"default: {' '.join(TRAINED)}")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    clock = process_time if options.cpu_time else monotonic
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tasks or TRAINED:
            found = measure(
                name, options.scale, options.data or Path(folder), rounds=options.rounds, clock=clock
            )
            lines.append(row(name, options.scale, found))
            print(lines[-1], file=sys.stderr, flush=True)
            gc.collect()  # models and loops refer to each other
    print(heading(options, arguments))
    print("\n".join(lines))
    if options.scale == "official":
        print("\n" + "\n".join(cuts(options.tasks or TRAINED)))
    return 0


def measure(name: str, scale: str, root: Path, *, rounds: int, clock: Clock = monotonic) -> Measured:
    """Return both sides' seconds a step in each round."""
    config, worker = configuration(name, scale), Worker(seed=1, data_root=root)
    with stand_in(name) if scale == "official" else nullcontext():
        setup = registry.build(config, worker)
    data = setup.load()
    sides = {
        "ours": Ours(setup, worker).train_steps,
        "plain": by_plain(build(config, setup.model), setup),
    }
    few = list(islice(endless(setup, data), 3))
    once = max([timed(side, few, clock) / len(few) for side in sides.values() for _ in range(2)][1::2])
    steps = list(islice(endless(setup, data), max(1, min(MOST_STEPS, round(BLOCK_S / once)))))
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(WARM_UP + rounds):
        for side in sorted(sides, reverse=number % 2 == 1):
            seconds[side].append(timed(sides[side], steps, clock) / len(steps))
    setup.close()
    return Measured(
        **{side: each[WARM_UP:] for side, each in seconds.items()},
        steps=len(steps),
        batch=sum(setup.samples(batch) for step in steps for batch in step) / len(steps),
        unit=setup.sample_unit,
    )


def configuration(name: str, scale: str) -> Any:
    """Return the task's configuration, the official one with what `CUTS` changes."""
    config = compose([f"task={name}", f"scale={scale}"]).task
    return config if scale == "mini" else config.model_copy(update=CUTS[name])


class Ours(loop.Run):
    """The loop's own steps, fed with batches that lie ready."""

    def train_steps(self, steps: Sequence[Any]) -> None:
        """Do what an epoch does between two validations, and the clock's sums that follow."""
        self.model.train()
        self.timer.start()
        for micro_batches in steps:
            self.timer.end_phase("data_wait")
            self.train_step(micro_batches)
        self.timer.pop()


def by_plain(plain: Plain, setup: TrainingSetup) -> Callable[[Sequence[Any]], None]:
    """Return the plain way through the steps, at the lr that our side has reached."""

    def train(steps: Sequence[Any]) -> None:
        plain.model.train()
        for group in plain.optimizer.param_groups:
            group["lr"] = setup.optimizer.param_groups[0]["lr"]
        for micro_batches in steps:
            plain.step(micro_batches)

    return train


def endless(setup: TrainingSetup, data: Any) -> Iterator[Any]:
    """Yield steps, epoch after epoch."""
    return chain.from_iterable(setup.steps(data, epoch) for epoch in count())


def timed(side: Callable[[Sequence[Any]], None], steps: Sequence[Any], clock: Clock) -> float:
    """Return the seconds that `side` takes for the steps."""
    begin = clock()
    side(steps)
    return clock() - begin


@contextmanager
def stand_in(name: str) -> Iterator[None]:
    """While it lasts, task `name` opens its mini data in the official data's shape."""
    where = "translation" if name in ("gnmt", "transformer") else name
    module = import_module(f"mlbench.tasks.{where}.data")
    opened = module.open_dataset
    with mock.patch.object(module, "open_dataset", lambda folder: SHAPED[name](opened(folder))):
        yield


def _wide_rows(found: Any) -> Any:
    train, test = found
    return [
        rows._replace(features=rows.features[:4096].repeat(1, 10), labels=rows.labels[:4096])
        for rows in found
    ]


def _long_sentences(found: Any, pieces: int) -> Any:
    """Return two sentences as one, about as long as WMT's, and a vocabulary of `pieces`."""
    train = replace(
        found.train,
        source_offsets=found.train.source_offsets[::2],
        target_offsets=found.train.target_offsets[::2],
    )
    padding = pa.array([""] * (pieces - len(found.pieces)), found.pieces.type)
    return replace(found, train=train, pieces=pa.chunked_array([*found.pieces.chunks, padding]))


SHAPED: dict[str, Callable[[Any], Any]] = {
    "logreg": _wide_rows,
    "resnet20": lambda found: found,
    "resnet50": lambda found: replace(found, classes=[str(number) for number in range(1000)]),
    "awdlstm": lambda found: found._replace(vocabulary=VOCABULARY["awdlstm"]),
    "gnmt": lambda found: _long_sentences(found, VOCABULARY["gnmt"]),
    "transformer": lambda found: _long_sentences(found, VOCABULARY["transformer"]),
}


def row(name: str, scale: str, found: Measured) -> str:
    """Return a task's row of the table."""
    ratios = [plain / ours for ours, plain in zip(found.ours, found.plain, strict=True)]
    ends = interval(ratios)
    told = f"{ends.low:.3f} to {ends.high:.3f}" if ends else ""
    ours, plain = (f"{1e3 * median(side):.4g}" for side in (found.ours, found.plain))
    batch = f"{found.batch:.0f} {found.unit}"
    return (
        f"| {name} | {scale} | {batch} | {found.steps} | {median(ratios):.3f} | {told} | {ours} | {plain} |"
    )


def heading(options: argparse.Namespace, arguments: Sequence[str]) -> str:
    """Return what the numbers were measured on, and the table's head."""
    machine = node.describe()
    return "\n".join(
        [
            f"{machine.cpu_model}, {machine.usable_cpus} CPUs, {options.threads} thread(s), torch "
            f"{torch.__version__}, {iso(wall())[:10]}, {options.rounds} rounds: "
            f"`{' '.join(['python tests/performance/steps.py', *arguments])}`",
            "",
            "| task | scale | step | steps a round | ours / plain | 95 % interval "
            "| ours, p50 ms | plain, p50 ms |",
            "|---|---|---|--:|--:|---|--:|--:|",
        ]
    )


def cuts(names: Sequence[str]) -> Iterator[str]:
    """Yield what differs from the official configuration, a line a task."""
    for name in names:
        official = compose([f"task={name}", "scale=official"]).task
        changes = [
            f"{field} {value} instead of {getattr(official, field)}" for field, value in CUTS[name].items()
        ]
        yield f"- {name}: {', '.join(changes)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

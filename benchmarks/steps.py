"""What the timed loop and the tasks' models cost: our steps against the references' on the same batches.

    python benchmarks/steps.py --rounds 10 --scale mini --variants
    python benchmarks/steps.py --rounds 5 --scale official gnmt transformer
    python benchmarks/steps.py --rounds 10 --parts logreg

- ours: what the task hands to the loop, through the loop's own `train_step` with the real clock
- reference: benchmarks/references, which share no code with mlbench and measure nothing
- variants: those that the reference tried, one after the other in every round
- parts: our steps without one thing that the loop does beside training, which says what that costs

A round runs the same steps all ways, in turn first; the ratio is paired within a round. With --cpu-time
seconds are those that the process computed, for a machine that does other work, too. Official data are not
needed: the models and recipes are the official ones, the batches are stand-ins of the same format and
shape, fewer a step, and the table says what was cut. Prints a part of docs/measurements/performance.md.
"""

import argparse
import copy
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
from origin import origin
from references import Reference, autocast, build, size_of, train_step

from mlbench.analysis.bootstrap import interval, median
from mlbench.clock import monotonic
from mlbench.config.compose import choices, compose
from mlbench.tasks import registry
from mlbench.training import loop
from mlbench.training.loss_meter import LossMeter
from mlbench.training.setup import TrainingSetup
from mlbench.training.timer import PhaseTimer
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
    "gpt": {"dataset": "scipy_docstrings", "global_batch_size": 1, "batch_size": 1},
}
VOCABULARY = {"awdlstm": 33_278, "gnmt": 32_320, "transformer": 33_712}  # words of the official data sets


@dataclass(frozen=True)
class Measured:
    """Seconds a step of every side in every round, and what a step was."""

    sides: dict[str, list[float]]  # "ours", "reference" and the variants' words
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
    parser.add_argument("--variants", action="store_true", help="also what the references tried")
    parser.add_argument("--parts", action="store_true", help="also our steps without one part each")
    parser.add_argument("--data", type=Path, help="data_root of prepared data; default: made anew")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"default: {' '.join(TRAINED)}")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    clock = process_time if options.cpu_time else monotonic
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tasks or TRAINED:
            overrides = variants(name) if options.variants else ()
            result = measure(
                name,
                options.scale,
                options.data or Path(folder),
                rounds=options.rounds,
                clock=clock,
                overrides=overrides,
                parts=options.parts,
            )
            more = rows(name, options.scale, result)
            print("\n".join(more), file=sys.stderr, flush=True)
            lines += more
            gc.collect()  # models and loops refer to each other
            torch.compiler.reset()
    print(origin(__file__, arguments, f"{options.threads} thread(s)", f"{options.rounds} rounds") + "\n")
    print("| task | scale | step | steps a round | side | side / reference | 95 % interval ", end="")
    print("| side, p50 ms | reference, p50 ms |\n|---|---|---|--:|---|--:|---|--:|--:|")
    print("\n".join(lines))
    if options.scale == "official":
        print("\n" + "\n".join(cuts(options.tasks or TRAINED)))
    return 0


def variants(name: str) -> tuple[str, ...]:
    """Return what the reference of a task tried, a word each."""
    return import_module(f"references.{name}").VARIANTS


def measure(
    name: str,
    scale: str,
    root: Path,
    *,
    rounds: int,
    clock: Clock = monotonic,
    overrides: Sequence[str] = (),
    parts: bool = False,
) -> Measured:
    """Return every side's seconds a step in each round."""
    config, worker = configuration(name, scale), Worker(seed=1, data_root=root)
    with stand_in(name) if scale == "official" else nullcontext():
        setup = registry.build(config, worker)
    data = setup.load()
    size = size_of(name, setup.model)
    sides: dict[str, Callable[..., None]] = {"ours": Ours(setup, worker).train_steps}
    if parts:
        sides |= without_parts(config, root)
    for word in ("", *overrides):
        chosen = dict([word.split("=")]) if word else {}
        reference = build(config, size, chosen)
        sides[word or "reference"] = by_reference(reference, setup, chosen)
    few = take(setup, data, 3)
    once = max([timed(side, few, clock) / len(few) for side in sides.values() for _ in range(2)][1::2])
    steps = take(setup, data, max(1, min(MOST_STEPS, round(BLOCK_S / once))))
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(WARM_UP + rounds):
        for side in sorted(sides, reverse=number % 2 == 1):
            seconds[side].append(timed(sides[side], steps, clock) / len(steps))
    setup.close()
    return Measured(
        sides={side: each[WARM_UP:] for side, each in seconds.items()},
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
        self.trainer.train()
        timer = self.worker.timer
        timer.start()
        for micro_batches in steps:
            timer.end_phase("data_wait")
            self.train_step(micro_batches)
        timer.pop()


class NoLosses(LossMeter):
    """Keeps no loss for the mean and the look whether it is finite."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.add = lambda loss: None


class WithoutLosses(Ours):
    """The loop's own steps, which keep no loss."""

    def __init__(self, setup: TrainingSetup, worker: Worker) -> None:
        super().__init__(setup, worker)
        self.trainer.losses = NoLosses(worker.device)


def without_parts(config: Any, root: Path) -> dict[str, Callable[..., None]]:
    """Return our steps without stamps, losses or the schedule, each with a model of its own."""
    workers = [Worker(seed=1, data_root=root) for _ in range(3)]
    workers[0].timer = PhaseTimer(enabled=False)
    setups = [registry.build(config, worker) for worker in workers]
    for setup in setups:
        setup.load()  # schedules count the steps there
    setups[2].before_step = lambda step: None
    loops = (Ours, WithoutLosses, Ours)
    names = ("ours without stamps", "ours without losses", "ours without the schedule")
    sides = zip(names, loops, setups, workers, strict=True)
    return {name: each(setup, worker).train_steps for name, each, setup, worker in sides}


def by_reference(
    reference: Reference, setup: TrainingSetup, overrides: dict[str, str]
) -> Callable[[Sequence[Any]], None]:
    """Return the reference's way through the steps, at the lr that our side has reached."""
    net: Any = torch.compile(reference.model) if "compile" in overrides else reference.model
    precision = autocast(overrides)

    def train(steps: Sequence[Any]) -> None:
        reference.model.train()
        for group in reference.optimizer.param_groups:
            group["lr"] = setup.optimizer.param_groups[0]["lr"]
        for micro_batches in steps:
            train_step(reference, net, micro_batches, precision)

    return train


def endless(setup: TrainingSetup, data: Any) -> Iterator[Any]:
    """Yield steps, epoch after epoch; each is valid until the next."""
    return chain.from_iterable(setup.steps(data, epoch) for epoch in count())


def take(setup: TrainingSetup, data: Any, number: int) -> list[Any]:
    """Return the first steps, copied: a task may write every batch into the same memory."""
    return [copy.deepcopy(step) for step in islice(endless(setup, data), number)]


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

    def shaped(folder: Path, **arguments: Any) -> Any:
        return SHAPED[name](opened(folder, **arguments))

    with mock.patch.object(module, "open_dataset", shaped):
        yield


def _wide_rows(dataset: Any) -> Any:
    train, test = dataset
    return [
        rows._replace(features=rows.features[:4096].repeat(1, 10), labels=rows.labels[:4096])
        for rows in dataset
    ]


def _long_sentences(dataset: Any, pieces: int) -> Any:
    """Return two sentences as one, about as long as WMT's, and a vocabulary of `pieces`."""
    train = replace(
        dataset.train,
        source_offsets=dataset.train.source_offsets[::2],
        target_offsets=dataset.train.target_offsets[::2],
    )
    padding = pa.array([""] * (pieces - len(dataset.pieces)), dataset.pieces.type)
    return replace(dataset, train=train, pieces=pa.chunked_array([*dataset.pieces.chunks, padding]))


SHAPED: dict[str, Callable[[Any], Any]] = {
    "logreg": _wide_rows,
    "resnet20": lambda dataset: dataset,
    "resnet50": lambda dataset: replace(dataset, classes=[str(number) for number in range(1000)]),
    "awdlstm": lambda dataset: dataset._replace(vocabulary=VOCABULARY["awdlstm"]),
    "gnmt": lambda dataset: _long_sentences(dataset, VOCABULARY["gnmt"]),
    "transformer": lambda dataset: _long_sentences(dataset, VOCABULARY["transformer"]),
    "gpt": lambda dataset: dataset,
}


def rows(name: str, scale: str, result: Measured) -> list[str]:
    """Return a task's rows of the table: ours against the reference, then the variants against it."""
    reference = result.sides["reference"]
    lines = []
    for side, seconds in result.sides.items():
        if side == "reference":
            continue
        ratios = [theirs / own for own, theirs in zip(seconds, reference, strict=True)]
        ends = interval(ratios)
        between = f"{ends.low:.3f} to {ends.high:.3f}" if ends else ""
        own, theirs = (f"{1e3 * median(each):.4g}" for each in (seconds, reference))
        step = f"{result.batch:.0f} {result.unit}"
        cells = (name, scale, step, result.steps, side, f"{median(ratios):.3f}", between, own, theirs)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


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

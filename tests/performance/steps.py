"""What the timed loop and the tasks' models cost: our updates against plain PyTorch ones on the same batches.

    python tests/performance/steps.py --rounds 10 --scale mini
    python tests/performance/steps.py --rounds 5 --scale official gnmt transformer

- ours: what the task hands to the loop, through the loop's own `train_update` with the real clock
- plain: tests/performance/plain, which builds the same model of torch's own layers and measures nothing

A round runs the same updates both ways, in turn first; the ratio is paired within a round. With --cpu-time
seconds are those that the process computed, for a machine that does other work, too. Official data are not
needed: the models and recipes are the official ones, the batches are stand-ins of the same format and
shape, fewer an update, and the table says what was cut. Prints a part of docs/performance.md.
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

import torch
from plain import Plain, build

from mlbench.analysis.bootstrap import interval, median
from mlbench.experiment.clock import iso, monotonic, wall
from mlbench.experiment.config import choices, compose
from mlbench.experiment.provenance import node
from mlbench.tasks import registry
from mlbench.training import loop
from mlbench.training.loop import Outcome, Parts
from mlbench.training.sync import ddp
from mlbench.training.worker import Worker

BLOCK_S = 1.0  # s that the updates of one side and round take together, about
MOST_UPDATES = 2_000  # of a round
Clock = Callable[[], float]  # s
WARM_UP = 2  # rounds that are not counted
TRAINED = [name for name in choices("task") if compose([f"task={name}"]).target is not None]

# What differs from the official configuration, so that an update takes seconds on two cores (2026-11-21).
CUTS: dict[str, dict[str, Any]] = {
    "logreg": {"dataset": "epsilon_like"},
    "resnet20": {"dataset": "digits"},
    "resnet50": {"dataset": "shapes", "batch_size": 8},
    "awdlstm": {"dataset": "agreement", "batch_size": 8},
    "gnmt": {"dataset": "phrasebook", "update_size": 16, "units": 1},
    "transformer": {"dataset": "phrasebook", "update_size": 640, "units": 1},
}
VOCABULARY = {"awdlstm": 33_278, "gnmt": 32_320, "transformer": 33_712}  # words of the official data sets


@dataclass(frozen=True)
class Measured:
    """Seconds an update of both sides in every round, and what an update was."""

    ours: list[float]
    plain: list[float]
    updates: int  # of a round
    batch: float  # samples of an update, mean
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
    """Return both sides' seconds an update in each round."""
    kept: dict[str, Any] = {}

    def use(parts: Parts, worker: Worker) -> None:
        sides = {"ours": Ours(parts, worker).train, "plain": by_plain(build(config, parts.model), parts)}
        few = list(islice(endless(parts), 3))
        once = max([timed(side, few, clock) / len(few) for side in sides.values() for _ in range(2)][1::2])
        updates = list(islice(endless(parts), max(1, min(MOST_UPDATES, round(BLOCK_S / once)))))
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(WARM_UP + rounds):
            for side in sorted(sides, reverse=number % 2 == 1):
                seconds[side].append(timed(sides[side], updates, clock) / len(updates))
        kept.update({side: each[WARM_UP:] for side, each in seconds.items()})
        kept["updates"] = len(updates)
        kept["batch"] = sum(parts.samples(batch) for update in updates for batch in update) / len(updates)

    config, worker = configuration(name, scale), Worker(seed=1, data_root=root)
    with stand_in(name) if scale == "official" else nullcontext():
        outcome = with_parts(config, worker, use)
    return Measured(unit=outcome.unit, **kept)


def configuration(name: str, scale: str) -> Any:
    """Return the task's configuration, the official one with what `CUTS` changes."""
    config = compose([f"task={name}", f"scale={scale}"]).task
    return config if scale == "mini" else config.model_copy(update=CUTS[name])


def with_parts(config: Any, worker: Worker, use: Callable[[Parts, Worker], None]) -> Outcome:
    """Run the task of `config` up to the loop, and give what it hands over to `use` instead."""

    def stub(parts: Parts, worker: Worker) -> Outcome:
        parts.load()
        use(parts, worker)
        return Outcome("completed")

    with mock.patch.object(loop, "train", stub):
        return registry.load(config.name).run(config, worker)


class Ours(loop._Run):
    """The loop's own updates, fed with batches that lie ready."""

    def __init__(self, parts: Parts, worker: Worker) -> None:
        super().__init__(parts, worker, ddp.wrap(parts.model, worker.sync, worker.tracker))

    def train(self, updates: Sequence[Any]) -> None:
        """Do what `epoch` does between two validations, and the clock's sums that follow."""
        self.model.train()
        self.tracker.resume()
        for done, micro_batches in enumerate(updates, start=1):
            self.tracker.mark("data_wait")
            self.train_update(micro_batches, done / len(updates))
        self.tracker.take()


def by_plain(plain: Plain, parts: Parts) -> Callable[[Sequence[Any]], None]:
    """Return the plain way through the updates, at the rate that our side has reached."""

    def train(updates: Sequence[Any]) -> None:
        plain.model.train()
        for group in plain.optimizer.param_groups:
            group["lr"] = parts.optimizer.param_groups[0]["lr"]
        for micro_batches in updates:
            plain.update(micro_batches)

    return train


def endless(parts: Parts) -> Iterator[Any]:
    """Yield updates, epoch after epoch."""
    return chain.from_iterable(parts.updates(epoch) for epoch in count())


def timed(side: Callable[[Sequence[Any]], None], updates: Sequence[Any], clock: Clock) -> float:
    """Return the seconds that `side` takes for the updates."""
    begin = clock()
    side(updates)
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
    return replace(found, train=train, pieces=[*found.pieces, *[""] * (pieces - len(found.pieces))])


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
        f"| {name} | {scale} | {batch} | {found.updates} | {median(ratios):.3f} | {told} | {ours} | {plain} |"
    )


def heading(options: argparse.Namespace, arguments: Sequence[str]) -> str:
    """Return what the numbers were measured on, and the table's head."""
    machine = node()
    return "\n".join(
        [
            f"{machine['cpu_model']}, {machine['usable_cpus']} CPUs, {options.threads} thread(s), torch "
            f"{torch.__version__}, {iso(wall())[:10]}, {options.rounds} rounds: "
            f"`{' '.join(['python tests/performance/steps.py', *arguments])}`",
            "",
            "| task | scale | update | updates a round | ours / plain | 95 % interval "
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

"""Data sets: `python -m mlbench.data list | prepare | verify`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mlbench.datasets import arrow
from mlbench.experiment import config
from mlbench.experiment.errors import UserError
from mlbench.experiment.format import with_prefix
from mlbench.tasks import registry
from mlbench.terminal import command

PIPE_WIDTH = 160  # columns, where the output is not a terminal that has a width
STEPS = 10  # lines a step of the work prints where there is no terminal for a bar

HELP = """\
usage: python -m mlbench.data list | prepare | verify [name=value ...]

Training reads prepared data sets: one folder each below data_root, with Arrow
files that are mapped into memory, and a manifest that says where they come
from and what their SHA-256 is. Mini data sets are made by the first run that
needs them. Official ones are prepared once, by you:

  python -m mlbench.data list
      Every task and scale: its data set, licence, sizes, and whether it is
      prepared.
  python -m mlbench.data prepare task=resnet20 scale=official data_root=/data
      Fetches, checks and converts CIFAR-10. An interrupted download goes on
      with the next call; an interrupted conversion leaves nothing behind.
  python -m mlbench.data prepare task=logreg division=open \\
      task.train_file=a9a.txt task.test_file=a9a.t
      Your own LIBSVM text files, plain, .bz2 or .gz; any two labels.
  python -m mlbench.data verify data_root=/data
      Hashes the files again; task=NAME verifies the one of that task.

The words are those of python -m mlbench.run; data_root is where data sets lie
(default: data, below the current folder). On a machine without a network, put
the archives into data_root/downloads and prepare as above.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    if not arguments or any(word in ("-h", "--help") for word in arguments):
        print(HELP, end="")
        return 0
    verb, *words = arguments

    def body() -> int:
        if verb not in COMMANDS:
            raise UserError(f"{verb!r} is not a command", hint=f"say {', '.join(COMMANDS)} or --help")
        with command.readers_may_leave():
            COMMANDS[verb](words)
        return 0

    return command.ended(body)


def list_datasets(words: Sequence[str]) -> None:
    """Print a table of the tasks' data sets."""
    table = Table(box=None)
    for heading in ("task", "scale", "data set", "prepared", "on disk", "download", "licence"):
        table.add_column(heading, justify="right" if heading in ("on disk", "download") else "left")
    for task in config.choices("task"):
        for scale in ("official", "mini"):
            experiment = config.compose([*words, f"task={task}", f"scale={scale}"])
            table.add_row(task, scale, *_description(experiment))
    console = Console()
    console.print(table) if console.is_terminal else Console(width=PIPE_WIDTH).print(table)


def prepare(words: Sequence[str]) -> None:
    """Make the data set of the composed experiment, showing progress, and print what it is."""
    experiment = config.compose(words)
    task = registry.load(experiment.task.name)
    if _datasets(experiment.task.name) is None:
        print(f"task {experiment.task.name} needs no data set")
        return
    with _shown() as progress:
        folder = task.prepare(experiment.task, experiment.data_root, progress=progress)
    print(_summary(folder, arrow.read_manifest(folder)))


def verify(words: Sequence[str]) -> None:
    """Hash prepared data sets again and print a line each; UserError for the first damaged file."""
    experiment = config.compose(words)
    root = experiment.data_root
    if any(word.startswith("task=") for word in words):
        folders = [root / experiment.task.dataset]
    else:
        folders = sorted(path.parent for path in root.glob(f"[!.]*/{arrow.MANIFEST}"))
    if not folders:
        raise UserError(
            f"nothing is prepared below {root}",
            hint="python -m mlbench.data prepare task=NAME scale=official, or another data_root=PATH",
        )
    for folder in folders:
        print(f"{_summary(folder, arrow.verify(folder))}: as written")


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "list": list_datasets,
    "prepare": prepare,
    "verify": verify,
}


def _description(experiment: config.Experiment) -> list[str]:
    """Return what the table says of a task's data set: what is there, else what the task promises."""
    task = experiment.task
    datasets = _datasets(task.name)
    if datasets is None:
        return ["-"] * 5
    info = datasets.get(task.dataset)
    download = with_prefix(info.download, "B") if info and info.download is not None else "?"
    folder = experiment.data_root / task.dataset
    size, licence = (with_prefix(info.prepared, "B"), info.manifest["licence"]) if info else ("?", "?")
    state = "no"
    if (folder / arrow.MANIFEST).is_file():
        try:
            manifest = arrow.read_manifest(folder)
        except UserError:
            state = "damaged"
        else:
            state, size, licence = "yes", with_prefix(_size(manifest), "B"), manifest["licence"]
    return [task.dataset, state, size, download, licence]


def _datasets(task: str) -> dict[str, arrow.DatasetInfo] | None:
    """Return what the task's data module says of its data sets; None for a task without data."""
    name = f"mlbench.tasks.{task}.data"
    return getattr(import_module(name), "DATASETS", {}) if find_spec(name) else None


def _summary(folder: Path, manifest: dict) -> str:
    rows = ", ".join(f"{name} {split['rows']:,} rows" for name, split in manifest["splits"].items())
    return f"{folder}: {rows}, {with_prefix(_size(manifest), 'B')}, manifest {arrow.manifest_hash(folder)}"


def _size(manifest: dict) -> int:
    return sum(split["bytes"] for split in manifest["splits"].values())


@contextmanager
def _shown() -> Iterator[arrow.Progress]:
    """Show what is under way: bars on a terminal, else a line every tenth of a step."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    text = TextColumn("{task.fields[amount]}")
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), text, TimeRemainingColumn(), console=console
    )
    with bars:
        running = {}

        def show(step: str, done: int, total: int | None, unit: str) -> None:
            if step not in running:
                running[step] = bars.add_task(step, total=total, amount="")
            bars.update(running[step], completed=done, total=total, amount=_amount(done, total, unit))

        yield show
        for bar in bars.tasks:  # what had no known end is at its end now
            bars.update(bar.id, total=bar.completed)


def _lines() -> arrow.Progress:
    last: dict[str, int] = {}

    def show(step: str, done: int, total: int | None, unit: str) -> None:
        part = done * STEPS // total if total else 0
        if step not in last or part > last[step]:
            last[step] = part
            amount = f": {_amount(done, total, unit)}" if total else ""
            print(step + amount, file=sys.stderr, flush=True)

    return show


def _amount(done: int, total: int | None, unit: str) -> str:
    if unit == "bytes":
        return f"{with_prefix(done, 'B')} of {with_prefix(total, 'B')}" if total else with_prefix(done, "B")
    return f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

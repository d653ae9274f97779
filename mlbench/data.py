"""Data sets: `python -m mlbench.data list | prepare | verify`."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mlbench.datasets import arrow
from mlbench.experiment import config
from mlbench.experiment.errors import UserError
from mlbench.experiment.format import with_prefix
from mlbench.tasks import registry
from mlbench.terminal import tables
from mlbench.terminal.args import OK, Args, Command, Verb, check_overrides, paragraph, run_command

STEPS = 10  # lines a step of the work prints where there is no terminal for a bar


def main(argv: Sequence[str]) -> int:
    """Run the command line; return its exit code."""
    return run_command(COMMAND, argv)


def _list(args: Args) -> int:
    """Print a table of the tasks' data sets."""
    check_overrides(args.words)
    rows = []
    for task in config.choices("task"):
        for scale in ("official", "mini"):
            experiment = config.compose([*args.words, f"task={task}", f"scale={scale}"])
            rows.append([task, scale, *_description(experiment)])
    headings = ("task", "scale", "data set", "prepared", "on disk", "download", "licence")
    print(tables.table(headings, rows, right=[name in ("on disk", "download") for name in headings]))
    return OK


def _prepare(args: Args) -> int:
    """Make the data set of the composed experiment, showing progress, and print what it is."""
    check_overrides(args.words)
    experiment = config.compose(args.words)
    task = registry.load(experiment.task.name)
    if _datasets(experiment.task.name) is None:
        print(f"task {experiment.task.name} needs no data set")
        return OK
    with _shown() as progress:
        folder = task.prepare(experiment.task, experiment.data_root, progress=progress)
    print(_summary(folder, arrow.read_manifest(folder)))
    return OK


def _verify(args: Args) -> int:
    """Hash prepared data sets again and print a line each; UserError for the first damaged file."""
    check_overrides(args.words)
    experiment = config.compose(args.words)
    root = experiment.data_root
    if any(word.startswith("task=") for word in args.words):
        folders = [root / experiment.task.dataset]
    else:
        folders = sorted(path.parent for path in root.glob(f"[!.]*/{arrow.MANIFEST}"))
    if not folders:
        raise UserError(
            f"nothing is prepared in {root}",
            hint="python -m mlbench.data prepare task=NAME scale=official, or another data_root=PATH",
        )
    for folder in folders:
        print(f"{_summary(folder, arrow.verify(folder))}: as written")
    return OK


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
    return registry.datasets(task)


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


def _sections() -> Iterator[tuple[str, str]]:
    yield (
        "overrides",
        paragraph(
            "The name=value overrides are those of python -m mlbench.run; data_root is the folder of the "
            "data sets (default: data, in the current folder). On a machine without a network, put the "
            "archives into data_root/downloads and prepare as above.",
            indent=2,
        ),
    )


PROGRAM = "python -m mlbench.data"
OVERRIDES = "[name=value ...]"
COMMAND = Command(
    "data",
    "Data sets. Training reads prepared data sets: one folder each in data_root, with Arrow files that are "
    "mapped into memory, and a manifest with their origin and SHA-256. Mini data sets are made by the first "
    "run that needs them. Official ones are prepared once, by you.",
    {
        "list": Verb(
            _list,
            "every task and scale: data set, licence, size, and whether it is prepared",
            words=OVERRIDES,
            overrides=True,
            examples=((f"{PROGRAM} list", ""), (f"{PROGRAM} list data_root=/data", "")),
        ),
        "prepare": Verb(
            _prepare,
            "download, check and convert a task's data set",
            "Download, check and convert a task's data set. An interrupted download continues with the next "
            "call; an interrupted conversion leaves nothing behind.",
            words=OVERRIDES,
            overrides=True,
            examples=(
                (f"{PROGRAM} prepare task=resnet20 scale=official data_root=/data", "Fetches CIFAR-10."),
                (
                    f"{PROGRAM} prepare task=logreg division=open \\\n"
                    "      task.train_file=a9a.txt task.test_file=a9a.t",
                    "Your own LIBSVM text files, plain, .bz2 or .gz; any two labels.",
                ),
            ),
        ),
        "verify": Verb(
            _verify,
            "hash the files of prepared data sets again",
            "Hash the files of all prepared data sets again, or with task=NAME those of that task.",
            words=OVERRIDES,
            overrides=True,
            examples=((f"{PROGRAM} verify data_root=/data", ""),),
        ),
    },
    sections=_sections,
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

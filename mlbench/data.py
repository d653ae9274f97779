"""Data sets: `python -m mlbench.data list | prepare | verify`."""

import sys
from collections.abc import Iterator, Sequence

from mlbench.config import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.datasets import arrow
from mlbench.tasks import registry
from mlbench.terminal import dataset_table
from mlbench.terminal.args import CONFIG_DIR, OK, Args, Command, Verb, check_overrides, paragraph, run_command


def main(argv: Sequence[str]) -> int:
    """Run the command line; return its exit code."""
    return run_command(COMMAND, argv)


def _list(args: Args) -> int:
    """Print a table of the tasks' data sets."""
    check_overrides(args.arguments)
    print(dataset_table.text(args.arguments))
    return OK


def _prepare(args: Args) -> int:
    """Make the data sets of the composed experiments, showing progress, and print what they are."""
    for experiment in _experiments(args):
        task = registry.load(experiment.task.name)
        if registry.datasets(experiment.task.name) is None:
            print(f"task {experiment.task.name} needs no data set")
            continue
        with dataset_table.progress() as progress:
            folder = task.prepare(experiment.task, experiment.data_root, progress=progress)
        print(dataset_table.summary(folder, arrow.read_manifest(folder)))
    return OK


def _experiments(args: Args) -> list[Experiment]:
    """Return an experiment for each task of the words, e.g. task=logreg,resnet20."""
    check_overrides(args.arguments)
    others = [word for word in args.arguments if not word.startswith("task=")]
    given = [word.partition("=")[2].split(",") for word in args.arguments if word.startswith("task=")]
    tasks = [[f"task={name}"] for name in given[0]] if given else [[]]
    return [compose.compose([*task, *others]) for task in tasks]


def _verify(args: Args) -> int:
    """Hash prepared data sets again and print a line each; UserError for the first damaged file."""
    experiments = _experiments(args)
    root = experiments[0].data_root
    if any(word.startswith("task=") for word in args.arguments):
        folders = [root / one.task.dataset for one in experiments]
    else:
        folders = sorted(path.parent for path in root.glob(f"[!.]*/{arrow.MANIFEST}"))
    if not folders:
        raise UserError(
            f"nothing is prepared in {root}",
            hint="python -m mlbench.data prepare task=NAME scale=official, or another data_root=PATH",
        )
    for folder in folders:
        print(f"{dataset_table.summary(folder, arrow.verify(folder))}: as written")
    return OK


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
            arguments=OVERRIDES,
            overrides=True,
            options=CONFIG_DIR,
            examples=((f"{PROGRAM} list", ""), (f"{PROGRAM} list data_root=/data", "")),
        ),
        "prepare": Verb(
            _prepare,
            "download, check and convert a task's data set",
            "Download, check and convert a task's data set. An interrupted download continues with the next "
            "call; an interrupted conversion leaves nothing behind.",
            arguments=OVERRIDES,
            overrides=True,
            options=CONFIG_DIR,
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
            arguments=OVERRIDES,
            overrides=True,
            options=CONFIG_DIR,
            examples=((f"{PROGRAM} verify data_root=/data", ""),),
        ),
    },
    sections=_sections,
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

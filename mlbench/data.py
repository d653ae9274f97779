"""Data sets. Training reads prepared data sets: one folder each in data_root.
It has Arrow files that are mapped into memory, and a manifest with their origin
and SHA-256. Mini data sets are made by the first run that needs them. You
prepare official ones once.
"""

import sys
from functools import partial

from mlbench.config import compose, resolved
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.datasets import arrow
from mlbench.tasks import registry
from mlbench.terminal import dataset_table
from mlbench.terminal.args import CONFIG_DIR, OK, Args, Command, check_overrides, run_command

OVERRIDES = (
    "The name=value overrides are those of mlbench run. data_root is the folder of the data sets (default: "
    "data, in the current folder). If a machine has no network, put the archives into "
    "data_root/downloads and prepare as above."
)
COMMAND = Command("data", __doc__, sections=lambda: [("overrides", OVERRIDES)], options=CONFIG_DIR)
main = partial(run_command, COMMAND)


@COMMAND.verb("list", "[name=value ...]")
def _list(args: Args) -> int:
    """Print each task and scale: data set, licence, size, and whether it is prepared.

    examples:
      mlbench data list
      mlbench data list data_root=/data
    """
    check_overrides(args.arguments)
    print(dataset_table.text(args.arguments))
    return OK


@COMMAND.verb("prepare", "[name=value ...]")
def _prepare(args: Args) -> int:
    r"""Download, check and convert a task's data set. An interrupted download
    continues with the next call. An interrupted conversion leaves nothing behind.

    examples:
      mlbench data prepare task=resnet20 scale=official data_root=/data
          Fetches CIFAR-10.
      mlbench data prepare task=logreg division=open \
          task.train_file=a9a.txt task.test_file=a9a.t
          Your LIBSVM text files, plain, .bz2 or .gz, with any two labels.
    """
    for experiment in _experiments(args):
        if not _has_data(experiment):
            continue
        task = registry.load(experiment.task.name)
        with dataset_table.progress() as progress:
            folder = task.prepare(experiment.task, experiment.data_root, progress=progress)
        print(dataset_table.summary(folder, arrow.read_manifest(folder)))
    return OK


def _experiments(args: Args) -> list[Experiment]:
    """Return an experiment for each task of the words, e.g. task=logreg,resnet20."""
    check_overrides(args.arguments)
    if (received := resolved.received()) is not None:
        return [received[0]]
    others = [word for word in args.arguments if not word.startswith("task=")]
    given = [word.partition("=")[2].split(",") for word in args.arguments if word.startswith("task=")]
    tasks = [[f"task={name}"] for name in given[0]] if given else [[]]
    return [compose.compose([*task, *others]) for task in tasks]


def _has_data(experiment: Experiment) -> bool:
    """Return whether a task reads a data set, and print it if not."""
    if registry.datasets(experiment.task.name) is not None:
        return True
    print(f"task {experiment.task.name} needs no data set")
    return False


@COMMAND.verb("verify", "[name=value ...]")
def _verify(args: Args) -> int:
    """Hash the files of all prepared data sets again, or with task=NAME those of that
    task.

    examples:
      mlbench data verify data_root=/data
    """
    experiments = _experiments(args)
    root = experiments[0].data_root
    if any(word.startswith("task=") for word in args.arguments):
        tasks = [each.task for each in experiments if _has_data(each)]
        folders = [
            # A user's files have a folder for each of their states, which only their task can find.
            registry.load(task.name).prepare(task, root) if registry.own_data(task) else root / task.dataset
            for task in tasks
        ]
    elif not (folders := sorted(path.parent for path in root.glob(f"[!.]*/{arrow.MANIFEST}"))):
        raise UserError(
            f"{root} has no prepared data set",
            hint="mlbench data prepare task=NAME scale=official, or another data_root=PATH",
        )
    for folder in folders:
        print(f"{dataset_table.summary(folder, arrow.verify(folder))}: as written")
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

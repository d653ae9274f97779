"""Write mlbench/record/official.json, with which official results are compared.

    python tools/freeze.py                          recipes and published data; sources stay unknown
    python tools/freeze.py --release                also the sources, when a version is released, and
                                                    releases/VERSION.json, which later versions keep
    python tools/freeze.py --data FOLDER            also rows and hashes of a data set prepared there

A data set is frozen by whoever prepared it from the published files; the others keep their values.
"""

import argparse
import hashlib
from pathlib import Path

import mlbench
from mlbench.config import compose, plugins
from mlbench.config.errors import UserError, comparable
from mlbench.datasets import verify
from mlbench.record import official, provenance
from mlbench.record.official import FrozenReference, PublishedDataset, Recipe
from mlbench.tasks import registry
from mlbench.tasks.awdlstm.data import WIKITEXT2_ARCHIVE
from mlbench.tasks.logreg.data import EPSILON_SHA256
from mlbench.tasks.resnet20.data import CIFAR10_ARCHIVE
from mlbench.terminal import help

PLACE = Path(official.__file__).with_name(official.FILE)
# What can move a number; a change raises Major.Minor (rule R9).
MEASURING = (
    "training/**/*.py", "launch/*.py", "probe/**/*.py", "script/**/*.py", "tasks/**/*.py", "datasets/*.py",
    "clusters/**/*.py",
    "clock.py", "record/phases.py", "record/build_record.py",
)  # fmt: skip
QUICK = "quick"


def measuring() -> str:
    """Return the hash of all sources and configuration that can move a number."""
    digest = hashlib.sha256()
    package = Path(mlbench.__file__).parent
    paths = [path for pattern in MEASURING for path in package.glob(pattern)]
    decisive = [folder for folder in plugins.packages() if folder.is_relative_to(package)]
    paths += [path for folder in decisive for path in folder.rglob("*.py")]
    paths += [*plugins.own_conf().rglob("*.yaml"), *package.glob("plugins/**/*.yaml")]
    for path in sorted(paths):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def recipes() -> dict[str, Recipe]:
    """Return the hash of every shipped task's recipes at official scale.

    An always open task has none, and neither has a recipe called quick, which measures a part of its task.
    """
    result = {}
    for task in (task for task in compose.choices("task") if not registry.load(task).Config.OPEN):
        for recipe in help.names(plugins.own_conf() / "task" / f"{task}.yaml", "recipes"):
            if recipe == QUICK:
                continue
            experiment = compose.compose([f"task={task}", f"task.recipe={recipe}", "scale=official"])
            free: list[str] = sorted(registry.load(task).Config.FREE)
            sha256 = official.recipe_hash(experiment.plain(), free)
            result[f"{task}/{recipe}"] = Recipe(sha256=sha256, free=free)
    return result


def frozen(before: FrozenReference | None, *, release: bool, data: list[Path]) -> FrozenReference:
    """Return the reference of the sources as they are, with the data sets and releases of `before`."""
    datasets = dict(before.datasets) if before else {}
    for name in PUBLISHED:
        dataset = datasets.get(name, PublishedDataset(rows=None, inputs=None, prepared=None))
        datasets[name] = dataset.model_copy(update=PUBLISHED[name])
    for folder in data:
        content = verify.content(folder)
        datasets[folder.name] = PublishedDataset(
            rows=content.data_rows, inputs=content.data_inputs, prepared=content.data_files
        )
    released = dict(before.measuring) if before else {}
    last = before.released if before else None
    if release:
        if official.DEVELOPMENT in mlbench.__version__:
            raise UserError(f"{mlbench.__version__} is a development version", hint="set mlbench.__version__")
        last = mlbench.__version__
        released[comparable(mlbench.__version__)] = measuring()
    return FrozenReference(
        version=mlbench.__version__,
        released=last,
        sources=provenance.sources() if release else None,
        measuring=released,
        recipes=recipes(),
        datasets=datasets,
    )


# What is known of the published data sets without having them here; the rest is null until it is frozen.
PUBLISHED = {
    # rows: as the LIBSVM data page says
    "epsilon": {"rows": {"train": 400_000, "test": 100_000}, "inputs": EPSILON_SHA256},
    # rows: as the publisher's page says, https://www.cs.toronto.edu/~kriz/cifar.html
    "cifar10": {
        "rows": {"train": 50_000, "test": 10_000},
        "inputs": {CIFAR10_ARCHIVE.file: CIFAR10_ARCHIVE.sha256},
    },
    "imagenet": {},
    "wikitext2": {"inputs": {WIKITEXT2_ARCHIVE.file: WIKITEXT2_ARCHIVE.sha256}},
    "wmt16_en_de": {},
    "wmt17_en_de": {},
    "fineweb10b_gpt2": {},
}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--release", action="store_true")
    parser.add_argument("--data", type=Path, action="append", default=[])
    options = parser.parse_args()
    before = FrozenReference.model_validate_json(PLACE.read_text("utf-8")) if PLACE.exists() else None
    reference = frozen(before, release=options.release, data=options.data)
    text = reference.model_dump_json(indent=2) + "\n"
    PLACE.write_text(text, "utf-8")
    if options.release:
        (PLACE.parent / official.RELEASES / f"{reference.version}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()

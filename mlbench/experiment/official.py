"""Whether a run may be called official, and if not, every reason why.

The facts are those of the run's own log. They are compared with official.json beside this file, which is
frozen with a release: recipes and goals, sources, and the published data sets. Sources and data that it does
not know (null) make no official result.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from mlbench.experiment.config import Experiment
from mlbench.experiment.record import Node, RunStart, Values, WorkerResult

FILE = "official.json"
IMPORTED = "imported: what it claims was not measured here"
# Variables that lower the precision of arithmetic, and the values that do not.
PRECISION = {
    "ONEDNN_DEFAULT_FPMATH_MODE": ("STRICT",),
    "DNNL_DEFAULT_FPMATH_MODE": ("STRICT",),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("0",),
    "NVIDIA_TF32_OVERRIDE": ("0",),
}
# Variables that put other code into the process.
OTHER_CODE = ("LD_PRELOAD", "PYTHONPATH")


class Recipe(Values):
    """One task's recipe at official scale."""

    sha256: str
    free: list[str]  # fields of the task that are not in the hash


class Dataset(Values):
    """A published data set; None: not known."""

    rows: dict[str, int] | None  # by split
    inputs: dict[str, str] | None  # SHA-256 of the published files, by name
    prepared: dict[str, str] | None  # SHA-256 of the prepared file, by split


class Reference(Values):
    """The frozen reference of one version of mlbench."""

    version: str
    sources: str | None  # provenance.sources(); None until the version is released
    measuring: dict[str, str]  # by released Major.Minor, the hash of what can move a number
    recipes: dict[str, Recipe]  # by "task/recipe"
    datasets: dict[str, Dataset]  # by name


@cache
def reference() -> Reference:
    """Return the reference that this mlbench was released with."""
    text = resources.files("mlbench.experiment").joinpath(FILE).read_text("utf-8")
    return Reference.model_validate_json(text)


def recipe_hash(experiment: Mapping[str, Any], free: Sequence[str]) -> str:
    """Return the hash of a resolved task and its goals, less its free fields, and of its sync strategy."""
    task = {name: value for name, value in experiment["task"].items() if name not in free}
    values = {"task": task, "sync": experiment["sync"]}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def reasons(
    start: RunStart, result: WorkerResult, *, status: str, caveats: list[str], frozen: Reference
) -> list[str]:
    """Return why a run is not official, one sentence each; empty for one that is."""
    experiment = start.experiment
    sentences = list(_of_the_choice(experiment, status))
    sentences += [f"deviation: {deviation}" for deviation in start.deviations]
    if not sentences:  # only what claims to be official is held against the published data and recipe
        sentences += _of_recipe(experiment, frozen)
        sentences += _of_data(experiment.task.dataset, result, frozen)
    sentences += _of_code(start, result.nodes, frozen)
    sentences += _of_environment(start, result.nodes)
    sentences += [f"the machine was busy: {one}" for one in start.warnings if "load average" in one]
    sentences += [f"caveat: {caveat}" for caveat in caveats]
    if result.data_changed:
        sentences.append("the data set changed while the run was training on it")
    if start.imported is not None:
        sentences.append(IMPORTED)
    return list(dict.fromkeys(sentences))


def _of_the_choice(experiment: Experiment, status: str) -> Iterator[str]:
    if experiment.scale != "official":
        yield f"scale={experiment.scale}"
    if experiment.division.name != "closed":
        yield f"division={experiment.division.name}"
    if experiment.network.emulated:
        yield f"the network is emulated: {experiment.network}"
    if experiment.task.goals is not None:
        if experiment.goal != "official":
            yield f"goal={experiment.goal}"
        elif status != "goal_reached":
            yield "the goal was not reached"
    elif status != "completed":
        yield f"the run is {status.replace('_', ' ')}"


def _of_recipe(experiment: Experiment, frozen: Reference) -> Iterator[str]:
    plain = experiment.plain()
    name = f"{experiment.task.name}/{experiment.task.recipe}"
    recipe = frozen.recipes.get(name)
    if recipe is None:
        yield f"the reference has no recipe {name}"
    elif recipe_hash(plain, recipe.free) != recipe.sha256:
        yield f"the recipe or a goal of {name} is not the one that mlbench {frozen.version} was released with"


def _of_data(name: str, result: WorkerResult, frozen: Reference) -> Iterator[str]:
    published = frozen.datasets.get(name)
    if name == "none":
        return
    if published is None:
        yield f"the reference has no data set {name}"
        return
    for what, known, given in (
        ("rows", published.rows, result.data_rows),
        ("input files", published.inputs, result.data_inputs),
        ("prepared files", published.prepared, result.data_files),
    ):
        if known is None:
            yield f"the reference does not know the {what} of the published {name}"
        elif known != given:
            yield f"the {what} of the data set are not those of the published {name}"


def _of_code(start: RunStart, nodes: list[Node], frozen: Reference) -> Iterator[str]:
    software = start.software
    if start.mlbench != frozen.version:
        yield f"it was measured by mlbench {start.mlbench}, the reference is of {frozen.version}"
    elif frozen.sources is None:
        yield f"mlbench {frozen.version} is not released: the reference does not know its sources"
    elif software.sources != frozen.sources:
        yield f"the sources are not those that mlbench {frozen.version} was released with"
    if software.git is not None and software.git.dirty:
        yield "the checkout has uncommitted changes"
    for node in nodes:
        if node.sources != software.sources:
            yield f"{node.hostname} ran other sources than the command"


def _of_environment(start: RunStart, nodes: list[Node]) -> Iterator[str]:
    for environment in (start.software.environment, *(node.environment for node in nodes)):
        for name, harmless in PRECISION.items():
            value = environment.get(name)
            if value and value.upper() not in harmless:
                yield f"{name}={value} lowers the precision of arithmetic"
        for name in OTHER_CODE:
            if environment.get(name):
                yield f"{name} puts other code into the processes"

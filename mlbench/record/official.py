"""Decide whether a point is official and which runs may belong to it. If not, return every reason.

No single run is official: times differ by a factor of two between seeds, so choosing a seed would choose the
time. The facts are those of the run's log. They are compared with the frozen references of the version that
measured: recipes and goals, sources, and the published data sets. official.json is this version's reference,
and releases/VERSION.json that of a release, so that later versions judge its results, too. Unknown sources
and data (null) make no official result.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import mlbench
from mlbench.config import compose
from mlbench.config.errors import is_comparable
from mlbench.config.experiment import Experiment
from mlbench.config.identity import identity, listed
from mlbench.record.attempts import History
from mlbench.record.record import FINISHED, Node, Record, RunStart, Values, WorkerResult

FILE, RELEASES = "official.json", "releases"
IMPORTED = "imported: what it claims was not measured here"
MISSED = "the goal was not reached"  # counts as infinite time, in official points, too
REACHED = ("goal_reached", "completed")
DEVELOPMENT = ".dev"  # marks a version between two releases (PEP 440)
FEWEST_SEEDS = 5  # runs whose range holds the median in 94 % of studies (docs/statistics.md)
# Variables that lower the precision of arithmetic, and the values that do not.
PRECISION = {
    "ONEDNN_DEFAULT_FPMATH_MODE": ("STRICT",),
    "DNNL_DEFAULT_FPMATH_MODE": ("STRICT",),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ("0",),
    "NVIDIA_TF32_OVERRIDE": ("0",),
}
# GKE's device plugin mounts the driver here (cloud.google.com, "About GPUs in GKE"), and the image has it
DRIVER = ("LD_LIBRARY_PATH", "/usr/local/nvidia/lib64")
# Of these variables each changes what computes, what code runs or what is measured, but for those after them.
CHANGING = {
    "changes arithmetic or the library that does it": ((
        "CUBLAS_*", "CUDNN_*", "JAX_*", "TORCHDYNAMO_*", "TORCHINDUCTOR_*", "TORCH_*", "TRITON_*", "XLA_*",
    ), (
        "CUBLAS_LOG*", "CUBLAS_WORKSPACE_CONFIG", "CUDNN_LOG*", "JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS",
        "TORCHINDUCTOR_CACHE_DIR", "TORCH_CPP_LOG_LEVEL", "TORCH_CUDA_ARCH_LIST", "TORCH_DISTRIBUTED_DEBUG",
        "TORCH_EXTENSIONS_DIR", "TORCH_HOME", "TORCH_LOGS*", "TORCH_NCCL_*", "TORCH_SHOW_*",
        "TRITON_CACHE_DIR", "XLA_PYTHON_CLIENT_*",
    )),
    "puts other code into the processes": (("LD_*", "PYTHON*", "RAY_*"), (
        "PYTHONBREAKPOINT", "PYTHONCOERCECLOCALE", "PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER",
        "PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONSTARTUP",
        "PYTHONUNBUFFERED", "PYTHONUTF8",
        "PYTHON_SHA256", "PYTHON_VERSION",  # of Docker's python images, on which image/Dockerfile is built
        "PYTHON_BASIC_REPL", "PYTHON_COLORS", "PYTHON_HISTORY",  # of its prompt
    )),
    "changes what mlbench measures": (("MLBENCH_*",), (
        "MLBENCH_CONFIG_DIR",  # its choices are deviations
        "MLBENCH_ADDED", "MLBENCH_EMULATION", "MLBENCH_EVENT_STREAM", "MLBENCH_OTHERS", "MLBENCH_OUTER",
        "MLBENCH_OWNER", "MLBENCH_PARENT",
        "MLBENCH_RAY_ADDRESS", "MLBENCH_SUBMITTED_AT",  # of mlbench itself, its commands
    )),
}  # fmt: skip


class Recipe(Values):
    """One task's recipe at official scale."""

    sha256: str
    free: list[str]  # fields of the task that are not in the hash


class PublishedDataset(Values):
    """A published data set (None: unknown)."""

    rows: dict[str, int] | None  # by split
    inputs: dict[str, str] | None  # SHA-256 of the published files, by name
    prepared: dict[str, str] | None  # SHA-256 of the prepared file, by split


class FrozenReference(Values):
    """The frozen reference of one version of mlbench."""

    version: str
    released: str | None = None  # the last released version (None: none yet)
    sources: str | None  # provenance.sources(), None until the version is released
    measuring: dict[str, str]  # by released Major.Minor, the hash of what can move a number
    recipes: dict[str, Recipe]  # by "task/recipe"
    datasets: dict[str, PublishedDataset]  # by name


@cache
def reference(version: str = mlbench.__version__) -> FrozenReference:
    """Return the reference of a release, and of any other version this mlbench's."""
    folder = resources.files("mlbench.record")
    released = {path.name: path for path in folder.joinpath(RELEASES).iterdir()}
    path = released.get(f"{version}.json", folder.joinpath(FILE))
    return FrozenReference.model_validate_json(path.read_text("utf-8"))


def eligible(reasons: Sequence[str]) -> bool:
    """Return whether a run may count in an official point. Only a missed goal is no obstacle."""
    return set(reasons) <= {MISSED}


def recipe_hash(experiment: Mapping[str, Any], free: Sequence[str]) -> str:
    """Return the hash of a resolved task and its goals, less its free fields, and of its sync strategy."""
    task = {name: value for name, value in experiment["task"].items() if name not in free}
    values = {"task": task, "sync": experiment["sync"]}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def reasons(
    start: RunStart,
    result: WorkerResult,
    *,
    status: str,
    caveats: list[str],
    sealed: bool,
    frozen: FrozenReference,
) -> list[str]:
    """Return why a run cannot belong to an official point, one sentence each, or [] if it can.

    sealed: whether its event log has the checksum that the command wrote at its end.
    """
    experiment = start.experiment
    sentences = list(_of_the_choice(experiment, status))
    sentences += [f"deviation: {deviation}" for deviation in start.deviations]
    if not sentences:  # only what claims to be official is held against the published data and recipe
        sentences += _of_recipe(experiment, frozen)
        sentences += _of_data(experiment.task.dataset, result, frozen)
    if not sentences and is_comparable(start.mlbench):
        fields = compose.undeclared(experiment.plain(), start.deviations)
        sentences += [f"{field} differs from the reference without a recorded deviation" for field in fields]
    sentences += _of_code(start, result.nodes, frozen)
    sentences += _of_environment(start, result.nodes)
    sentences += [  # of logs until 0.2.0. Since then what other processes used is measured, a caveat
        f"the machine was busy: {warning}" for warning in start.warnings if "load average" in warning
    ]
    sentences += [f"caveat: {caveat}" for caveat in caveats]
    if not sealed:
        sentences.append("its event log has no checksum")
    if result.data_changed:
        sentences.append("the data set changed while the run was training on it")
    if start.imported is not None:
        sentences.append(IMPORTED)
    return list(dict.fromkeys(sentences))


def of_point(runs: Sequence[Record], attempts: Sequence[Record], history: History) -> list[str]:
    """Return why a point is not official, one sentence each, or [] if it is.

    runs: those that count, one a seed. attempts: all of the point.
    """
    counted, drawn = {run.seed for run in runs}, history.drawn
    unlogged = drawn - history.logged
    given = ({run.seed for run in attempts} | history.planned) - drawn
    interrupted = sum(run.status in ("interrupted", "preempted") for run in attempts)
    numbers = {
        f"of its seeds {len(drawn)} were drawn by a sweep, and it takes {FEWEST_SEEDS}": len(drawn)
        < FEWEST_SEEDS,
        f"of its seeds {len(given)} were chosen and not drawn": given,
        f"of its seeds {len(drawn - counted)} have no result": drawn - counted,
        f"of its seeds {len(unlogged)} have no attempt in a study's log": unlogged,
        f"of its attempts {len(history.deleted)} were deleted or cannot be read": history.deleted,
        f"of its attempts {len(history.unfinished)} go on, or were killed": history.unfinished,
        f"of its attempts {interrupted} were interrupted or preempted": interrupted,
        "half of its runs or more missed the goal": 2 * sum(run.status not in REACHED for run in runs)
        >= len(runs),
    }
    sentences = [sentence for sentence, holds in numbers.items() if holds]
    finished = [run for run in attempts if run.status in FINISHED]
    sentences += [reason for run in finished for reason in run.official_reasons if reason != MISSED]
    if not sentences:  # only what claims to be official
        fields = {json.dumps(identity(run.experiment.plain()), sort_keys=True) for run in attempts}
        sentences += [f"its runs are of {len(fields)} configurations"] * (len(fields) > 1)
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
            yield MISSED
    elif status != "completed":
        reached = status == "goal_reached"
        yield "the task has no official goal" if reached else f"the run is {status.replace('_', ' ')}"


def _of_recipe(experiment: Experiment, frozen: FrozenReference) -> Iterator[str]:
    name = f"{experiment.task.name}/{experiment.task.recipe}"
    recipe = frozen.recipes.get(name)
    if recipe is None:
        yield f"the reference has no recipe {name}"
    elif recipe_hash(experiment.plain(), recipe.free) != recipe.sha256:
        yield f"the recipe or a goal of {name} is not the one that mlbench {frozen.version} was released with"


def _of_data(name: str, result: WorkerResult, frozen: FrozenReference) -> Iterator[str]:
    published = frozen.datasets.get(name)
    if name == "none":
        return
    if published is None:
        yield f"the reference has no data set {name}"
        return
    for what, expected, given in (
        ("rows", published.rows, result.data_rows),
        ("input files", published.inputs, result.data_inputs),
        ("prepared files", published.prepared, result.data_files),
    ):
        if expected is None:
            yield f"the reference has no {what} of the published {name}"
        elif expected != given:
            yield f"the {what} of the data set are not those of the published {name}"


def _of_code(start: RunStart, nodes: list[Node], frozen: FrozenReference) -> Iterator[str]:
    software = start.software
    if DEVELOPMENT in start.mlbench:
        after = f"version after {frozen.released}" if frozen.released else "version, and none is released yet"
        yield f"mlbench {start.mlbench} is a development {after}"
    elif start.mlbench != frozen.version:
        yield f"it was measured by mlbench {start.mlbench}, the reference is of {frozen.version}"
    elif frozen.sources is None:
        yield f"mlbench {frozen.version} is not released: the reference lacks its sources"
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
        variables = [name for name, value in environment.items() if value and (name, value) != DRIVER]
        for what, (patterns, harmless) in CHANGING.items():
            for name in variables:
                if listed(name, patterns) and name not in PRECISION and not listed(name, harmless):
                    yield f"{name} {what}"
    for code in (start.software.startup_code, *(node.startup_code for node in nodes)):
        yield from (f"{name} runs before mlbench or changes how it runs" for name in code)

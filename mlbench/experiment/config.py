"""What a run is: frozen, validated values, composed once from conf/ and the command line.

Hydra composes the YAML files; nothing past `compose` sees Hydra or OmegaConf. The models below have no
defaults: every value stands in conf/, so a missing key is an error and there is one place to look.
"""

import math
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mlbench.experiment import complaints, overrides, plugins
from mlbench.experiment.credentials import without_credentials
from mlbench.experiment.division import Deviation, deviations
from mlbench.experiment.errors import UserError
from mlbench.experiment.goal import Direction, Goal
from mlbench.experiment.network import HOST, Network, faults

GROUPS = overrides.GROUPS

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]


class Model(BaseModel):
    """Frozen values; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Targets(Model):
    """The two goals that the suite fixes for a task; the user may give a number instead."""

    official: float
    light: float


class TaskConfig(Model):
    """The fields that every task has; a task's own `Config` adds its hyper-parameters."""

    FREE: ClassVar[tuple[str, ...]] = ()  # fields that change speed, not the algorithm
    OWN_DATA: ClassVar[tuple[str, ...]] = ()  # fields that name files of the user's own
    CLASSES: ClassVar[int | None] = None  # that the metric, an accuracy in %, tells apart; None: unknown
    DATA_FIELDS: ClassVar[tuple[str, ...]] = ()  # further fields that say how data are split or read

    name: str
    recipe: str
    dataset: str  # the data set's folder below data_root, and the word `prepare` dispatches on
    metric: str  # name of the validation metric that the goal watches
    metric_unit: str  # unit of that metric, for people: "%", "BLEU", ""
    direction: Direction
    goals: Targets | None  # None: a task that measures without a goal, or data for which none is fixed
    time_budget_s: PositiveFloat  # accuracy_after_time: the best validation within this many seconds


Precision = Literal["fp32", "tf32", "bf16", "fp16"]
GPU_ONLY = ("tf32", "fp16")  # formats of a GPU's tensor cores; no CPU has kernels for training in them


class TrainingConfig(TaskConfig):
    """The fields that every task with epochs has."""

    PRECISIONS: ClassVar[tuple[Precision, ...]] = ("fp32",)  # what the task can compute in
    RECIPE_PRECISION: ClassVar[dict[str, Precision]] = {"cpu": "fp32", "cuda": "fp32"}  # by device

    batch_size: PositiveInt  # samples a worker and update
    epochs: PositiveInt  # the run ends here when the goal is not reached before
    precision: Precision | None = None  # None: the recipe's for the device, which `compose` puts in its place

    def global_batch(self, workers: int) -> int:
        """Return the samples of one optimizer step over all workers."""
        return self.batch_size * workers


class Peak(Model):
    """The arithmetic peak of one GPU, or of one node's CPU where it has none, in FLOP/s."""

    fp32: PositiveFloat | None
    tf32: PositiveFloat | None = None
    fp16: PositiveFloat | None
    bf16: PositiveFloat | None
    source: str


class Price(Model):
    """What one node costs; every price carries its date and origin."""

    usd_per_hour: PositiveFloat
    usd_per_hour_spot: PositiveFloat | None
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]  # ISO date on which the price was read
    source: str

    @model_validator(mode="after")
    def _spot_is_cheaper(self) -> "Price":
        if self.usd_per_hour_spot is not None and self.usd_per_hour_spot > self.usd_per_hour:
            raise ValueError("usd_per_hour_spot is above usd_per_hour")
        return self


class Machine(Model):
    """How a cloud names the node, for clusters that `mlbench.cluster up` makes."""

    provider: Literal["gke", "aws"]
    type: str  # machine or instance type, e.g. n1-standard-4
    accelerator: str | None  # GKE's name of a GPU, e.g. nvidia-tesla-t4; None: no GPU, or a part of the type
    place: str  # zone (gke) or region (aws) whose list price the profile states


class Grid(Model):
    """How much carbon dioxide the electricity of a node's place stands for."""

    g_per_kwh: NonNegativeFloat  # g of CO2 equivalents
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]  # ISO date on which it was read
    source: str


class Hardware(Model):
    """The shape and price of one node, and how workers sit on it."""

    name: str
    description: str
    cpus: PositiveInt | None  # usable by workers; None: whatever this machine has
    gpus: Annotated[int, Field(ge=0)]
    gpu_model: str | None  # a part of the name that the driver reports, e.g. "T4"
    workers_per_node: PositiveInt | None  # None: all workers on one node
    threads_per_worker: PositiveInt | None  # None: the node's CPUs shared out among its workers
    network_gbit_per_s: PositiveFloat | None
    machine: Machine | None = None  # None: no cloud's
    price: Price | None  # None: not for rent; a cost is then not shown
    peak: Peak | None  # None: unknown; MFU is then not shown
    grid: Grid | None = None  # None: unknown; carbon is then not shown

    @model_validator(mode="after")
    def _a_priced_node_has_a_size(self) -> "Hardware":
        # Otherwise any number of workers would be billed as one node.
        if self.price is not None and self.workers_per_node is None:
            raise ValueError("hardware with a price needs workers_per_node, by which nodes are billed")
        return self


# All-reduce algorithms by backend: NCCL's (NCCL_ALGO) and MPICH 5's (MPIR_CVAR_IALLREDUCE_INTRA_ALGORITHM).
ALGORITHMS = {
    "nccl": ("ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree"),
    "mpi": (
        *("sched_naive", "sched_smp", "sched_recursive_doubling", "sched_reduce_scatter_allgather"),
        *("tsp_ring", "tsp_tree", "tsp_recexch_single_buffer", "tsp_recexch_multiple_buffer"),
        "tsp_recexch_reduce_scatter_recexch_allgatherv",
    ),
}


class Backend(Model):
    """The torch.distributed backend that the process group is made from.

    A backend's file holds the fields that its library has; a field that is null is left to the library.
    """

    name: str
    device: Literal["cpu", "cuda"]
    module: str | None = None  # imported on every worker before the process group, to register the backend
    interface: Annotated[str, Field(min_length=1)] | None = (
        None  # network interface of all workers; None: the one by which each reaches the head
    )
    timeout_s: PositiveInt  # a collective that takes longer is stuck; Ray Train takes whole seconds
    sockets: PositiveInt | None = None  # TCP connections between two workers; nccl: of each of its threads
    threads: PositiveInt | None = None  # that serve nccl's sockets
    provider: str | None = None  # libfabric's, by which mpi reaches other hosts
    algorithm: str | None = None  # of all-reduce

    @model_validator(mode="after")
    def _the_library_has_the_algorithm(self) -> "Backend":
        known = ALGORITHMS.get(self.name, ())
        if self.algorithm is not None and known and self.algorithm not in known:
            raise ValueError(
                f"{self.name} has no all-reduce algorithm {self.algorithm}: it has {', '.join(known)}"
            )
        return self


class Cluster(Model):
    """Where Ray runs; a cluster's module may have a `Config` that adds its fields."""

    name: str
    # More workers than CPUs are allowed, and marked; force: also very many (clusters/placement.py).
    oversubscribe: bool | Literal["force"]


class Sync(Model):
    """How gradients are combined between workers; a strategy's own `Config` adds its fields."""

    CLOSED: ClassVar[bool] = False  # ddp's mathematics: the closed division allows it as its file is
    NEEDS_OPTIMIZER: ClassVar[bool] = False  # a task must step by optimizer.step(), not by its own arithmetic

    name: str

    @property
    def restarts(self) -> bool:
        """Whether rank 0's model and optimizer, which a checkpoint holds, are all that a restart needs."""
        return True

    def check(self, *, workers: int, precision: Precision) -> None:
        """Raise UserError where the strategy cannot combine what so many workers compute, two at least."""


class Division(Model):
    """Which fields may differ from the task's reference.

    - free: without a word.
    - declared: listed in the result, which is then not official.
    - fixed: never.
    """

    name: str
    free: tuple[str, ...]
    declared: tuple[str, ...]
    fixed: tuple[str, ...]


PLUGIN_GROUPS: dict[str, type[Model]] = {"task": TaskConfig, "sync": Sync, "cluster": Cluster}


# MLflow's kinds of tracking URIs (mlflow.store.tracking, 3.17); a plain path is a folder.
STORES = {"file", "http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks"}
STORES |= {"databricks-uc", "uc"}
# SQLAlchemy's default driver of a database, the module of a driver of another name, and pip's name of it.
DRIVERS = {"postgresql": "psycopg", "mysql": "mysqldb", "mssql": "pyodbc"}
MODULES = {"mysqldb": "MySQLdb"}
PACKAGES = {"mysqldb": "mysqlclient", "psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary"}
UNIT_BOUNDS = {"%": (0.0, 100.0)}  # what values of a unit can be
METRIC_BOUNDS = {"bleu": (0.0, 100.0), "perplexity": (1.0, math.inf)}


class Experiment(Model):
    """Everything that decides what one run does."""

    task: TaskConfig
    hardware: Hardware
    backend: Backend
    cluster: Cluster
    sync: Sync
    division: Division
    network: Network = HOST
    workers: PositiveInt
    scale: Literal["official", "mini"]
    goal: Literal["official", "light", "none"] | float
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None
    max_failures: Annotated[int, Field(ge=0)]
    phase_timing: bool
    profile: Annotated[int, Field(ge=0)] = 0  # steps; records made before there was a profiler lack it
    data_root: Path
    output_root: Path
    tracking_uri: str | None
    study: Annotated[str, Field(pattern=r"^\w[\w.-]*$")] | None
    verbose: bool
    force: bool
    # How the experiment differs from the closed reference; `compose` computes it, the record lists it.
    deviations: tuple[Deviation, ...] = Field(default=(), exclude=True)

    @field_validator("goal", mode="before")
    @classmethod
    def _goal_is_no_switch(cls, goal: Any) -> Any:
        if isinstance(goal, bool):
            raise ValueError("must be official, light, none or a number")
        return goal

    @field_validator("data_root", "output_root", "tracking_uri", mode="before")
    @classmethod
    def _place_is_named(cls, place: Any) -> Any:
        if place == "":
            raise ValueError("is empty; leave it out for the default")
        if isinstance(place, str) and place.startswith("$"):
            raise ValueError("the shell has not put in the variable's value; leave out single quotes")
        return place

    @field_validator("tracking_uri")
    @classmethod
    def _store_has_a_scheme_of_mlflow(cls, uri: str | None) -> str | None:
        scheme = urlsplit(uri).scheme.partition("+")[0] if uri and "://" in uri else ""
        if scheme and scheme not in STORES and not entry_points(group="mlflow.tracking_store", name=scheme):
            raise ValueError(f"MLflow has no store of the kind {scheme}: {', '.join(sorted(STORES))}")
        return uri

    @field_validator("goal")
    @classmethod
    def _goal_can_be_reached(cls, goal: str | float, info: ValidationInfo) -> str | float:
        task = info.data.get("task")
        if task is not None and task.goals is None:
            trains = hasattr(task, "epochs")  # also as a record has it, without the task's own Config
            if isinstance(goal, float) and not trains:
                raise ValueError(f"{task.name} measures without a goal; leave goal out")
            if goal == "light" and trains:
                raise ValueError(f"no goal is fixed for {task.dataset}; leave goal out, or give a number")
        if not isinstance(goal, float) or task is None:
            return goal
        low, high = METRIC_BOUNDS.get(task.metric, UNIT_BOUNDS.get(task.metric_unit, (-math.inf, math.inf)))
        if not low <= goal <= high:
            ends = f"between {low:g} and {high:g} {task.metric_unit}" if high < math.inf else f"above {low:g}"
            raise ValueError(f"{task.metric} lies {ends.rstrip()}")
        return goal

    @property
    def target(self) -> Goal | None:
        """The goal as metric, number and direction; None for `goal=none` and where the task fixes none."""
        goals = self.task.goals
        if self.goal == "none" or goals is None and isinstance(self.goal, str):
            return None
        number = getattr(goals, self.goal) if isinstance(self.goal, str) else self.goal
        return Goal(self.task.metric, number, self.task.direction)

    @property
    def store(self) -> str:
        """The MLflow tracking URI; the default is a SQLite file beside the runs."""
        return self.tracking_uri or default_store(self.output_root)

    @property
    def official(self) -> bool:
        """Whether a result of this run may be called official: closed division, official scale."""
        return self.division.name == "closed" and self.scale == "official"

    def plain(self) -> dict[str, Any]:
        """Return the values as JSON types, without credentials: they go into logs and results."""
        values = self.model_dump(mode="json", serialize_as_any=True)
        if self.tracking_uri is not None:
            values["tracking_uri"] = without_credentials(self.tracking_uri)
        return values


def check_store(uri: str) -> None:
    """Raise UserError for a tracking URI that MLflow can never open, whatever is started or mounted."""
    stated = f"tracking_uri={without_credentials(uri)}"
    scheme, _, driver = urlsplit(uri).scheme.partition("+")
    if re.fullmatch(r"(localhost|[\w-]+(\.[\w-]+)*):\d+(/.*)?", uri):
        raise UserError(f"{stated} is no address", hint=f"write tracking_uri=http://{uri}")
    if scheme == "file" or not scheme and uri not in STORES:
        database = uri.removeprefix("file://").rstrip("/") + "/mlflow.db"
        hint = f"MLflow 3 writes no folders of files; write tracking_uri=sqlite:///{database}"
        raise UserError(f"{stated} is a folder", hint=hint)
    module = driver or DRIVERS.get(scheme)
    if module and scheme in DRIVERS and find_spec(MODULES.get(module, module)) is None:
        package = PACKAGES.get(module, module)
        raise UserError(f"{stated}: Python lacks its driver {module}", hint=f"pip install {package}")


def default_store(output_root: Path) -> str:
    """Return the tracking URI of runs that name none."""
    return f"sqlite:///{(output_root / 'mlflow.db').absolute()}"


def data_fields(task: str) -> tuple[str, ...]:
    """Return the fields that say on what runs of a task were trained and judged, e.g. task.dataset.

    Of a task that is not installed, only those that every task has.
    """
    try:
        config = plugins.load("task", task).Config
    except (UserError, ImportError):
        config = TaskConfig
    return tuple(f"task.{name}" for name in ("dataset", *config.OWN_DATA, *config.DATA_FIELDS))


def choices(group: str) -> list[str]:
    """Return the names one may give to a configuration group, e.g. every task."""
    return list(plugins.files(group))


def hardware(name: str) -> Hardware:
    """Return a profile by its name, without composing a run; UserError for one that is not valid."""
    values = overrides.hardware(name)
    try:
        return Hardware.model_validate(values)
    except ValidationError as error:
        sentences = complaints.sentences([("hardware.", error)], {"hardware": values})
        raise UserError("; ".join(sentences)) from error


def compose(words: Sequence[str] = ()) -> Experiment:
    """Turn `name=value` words into an Experiment with its deviations from the closed reference.

    Raises a UserError that lists every mistake: unknown names, wrong types, values out of range, and values
    that the chosen division does not allow.
    """
    parsed = overrides.parse(words)
    composed, reference = overrides.values(parsed)
    experiment = _validated(composed, parsed.errors)
    if experiment is not None and not isinstance(experiment.task, TrainingConfig):
        chosen = [f"sync={parsed.choices['sync']}"] if parsed.choices.get("sync", "ddp") != "ddp" else []
        chosen += [name for name in parsed.values if name.startswith("sync.")]
        if chosen:
            parsed.errors.append(
                f"{', '.join(chosen)}: task={experiment.task.name} trains no model that workers could "
                "combine; leave sync out"
            )
    if parsed.errors or experiment is None:
        raise UserError("; ".join(parsed.errors), hint="`python -m mlbench.run --help` shows what there is")
    if experiment.tracking_uri is not None:
        check_store(experiment.tracking_uri)
    differences = (*_foreign(parsed), *_varied(parsed, reference), *_deviations(experiment, reference))
    return experiment.model_copy(update={"deviations": differences})


def _foreign(parsed: overrides.Overrides) -> Iterator[Deviation]:
    """Yield the choices whose files are not mlbench's own: allowed, but no result of them is official."""
    for group, choice in parsed.choices.items():
        if not plugins.files(group, parsed.searchpath)[choice].is_relative_to(plugins.own_conf()):
            yield Deviation(
                field=group,
                given=choice,
                reference="a choice that mlbench ships",
                rule="R14" if group == "hardware" else "R4",
                fixed=False,
                declared=True,
            )


def _varied(parsed: overrides.Overrides, reference: dict[str, Any]) -> Iterator[Deviation]:
    """Yield in what a file of the user's differs from the task of mlbench's that it varies."""
    shipped = overrides.shipped_task(reference["task"]["name"], parsed)
    if shipped is None:
        return
    varied, own = (_validated(reference | {"task": task}, []) for task in (reference["task"], shipped))
    if varied is not None and own is not None:
        for one in deviations(varied.plain(), own.plain(), own.division):
            yield one.model_copy(update={"declared": True})


def _deviations(experiment: Experiment, composed: dict[str, Any]) -> tuple[Deviation, ...]:
    """Return what differs from the closed reference; UserError for what the division does not allow."""
    reference = _validated(composed, faults := [])
    if reference is None:
        raise UserError("; ".join(faults), hint="a file in conf/ is not valid")
    division = reference.division
    free = (*division.free, *(f"task.{field}" for field in type(reference.task).FREE))
    differences = deviations(
        experiment.plain(), reference.plain(), division.model_copy(update={"free": free})
    )
    if division.name == "closed":
        refused = [one for one in differences if not one.declared]
        hint = "restore the reference value, or use division=open, which lists it in the result"
        if any(one.rule == "R2" for one in refused):  # no division allows these
            hint = "goal=NUMBER sets another goal; other data are a task of your own: docs/adding-a-task.md"
    else:
        refused = [one for one in differences if one.fixed]
        hint = "make it a task of your own: docs/adding-a-task.md"
    if any(one.field == "sync.name" for one in refused):  # its fields say nothing more
        refused = [one for one in refused if one.field == "sync.name" or not one.field.startswith("sync.")]
    if refused:
        raise UserError("; ".join(map(str, refused)), hint=hint)
    return differences


def _too_easy(experiment: Experiment) -> str | None:
    """Return why a goal in % says nothing: it is a fraction, or guessing reaches it."""
    goal, task = experiment.goal, experiment.task
    if isinstance(goal, str) or task.metric_unit != "%" or task.direction != "max":
        return None
    if 0 < goal < 1:
        return f"goal={goal:g}: {task.metric} is in %: goal={100 * goal:g} is {100 * goal:g} %"
    chance = 100 / task.CLASSES if task.CLASSES else 0.0
    return f"goal={goal:g}: guessing reaches {task.metric} {chance:g} %" if goal <= chance else None


def _validated(composed: dict[str, Any], errors: list[str]) -> Experiment | None:
    """Validate with the Config of the chosen task, sync strategy and cluster; add one sentence an error."""
    parts: dict[str, Any] = dict(composed)
    problems: list[tuple[str, ValidationError]] = []
    for group, base in PLUGIN_GROUPS.items():
        module = plugins.load(group, composed[group]["name"])
        try:
            parts[group] = getattr(module, "Config", base).model_validate(composed[group])
        except ValidationError as error:
            problems.append((f"{group}.", error))
    try:
        experiment = Experiment.model_validate(parts)
    except ValidationError as error:
        problems.append(("", error))
        experiment = None
    if experiment is not None:
        cluster, backend = experiment.cluster.name, experiment.backend
        errors += faults(experiment.network, workers=experiment.workers, cluster=cluster, backend=backend)
    if experiment is not None and (sentence := _too_easy(experiment)):
        errors.append(sentence)
    if experiment is not None and isinstance(experiment.task, TrainingConfig):
        task, device = experiment.task, experiment.backend.device
        precision = task.precision or task.RECIPE_PRECISION[device]
        if experiment.workers > 1:
            try:
                experiment.sync.check(workers=experiment.workers, precision=precision)
            except UserError as error:
                errors.append(str(error))
        can = [one for one in task.PRECISIONS if device == "cuda" or one not in GPU_ONLY]
        if precision not in can:
            place = f"backend={experiment.backend.name}"
            errors.append(f"task.precision={precision}: on {place} {task.name} computes in {', '.join(can)}")
        task = task.model_copy(update={"precision": precision})
        experiment = experiment.model_copy(update={"task": task})
    if experiment is not None and experiment.max_failures and not experiment.sync.restarts:
        errors.append(
            f"max_failures={experiment.max_failures}: sync={experiment.sync.name} has state on every worker "
            "that no checkpoint holds, so no run goes on after a failure"
        )
    errors += [one for one in complaints.sentences(problems, composed) if one not in errors]
    return experiment if not problems else None

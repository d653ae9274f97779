"""What a run is: frozen, validated values, composed once from conf/ and the command line.

Hydra composes the YAML files. Nothing past `compose` sees Hydra or OmegaConf. The models below have no
defaults: every value is in conf/, so a missing key is an error and there is one place to look.
"""

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mlbench.config.credentials import without_credentials
from mlbench.config.division import Deviation, Division
from mlbench.config.goal import Direction, Goal
from mlbench.config.network import HOST, Network
from mlbench.config.plugins import TORCH
from mlbench.config.store_uri import check_scheme, default_store

DATE = r"^\d{4}-\d\d-\d\d$"
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]


class FrozenModel(BaseModel):
    """Frozen values. An unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Targets(FrozenModel):
    """The two goals that the suite fixes for a task. The user may give a number instead."""

    official: float
    light: float


class TaskConfig(FrozenModel):
    """The fields that every task has. A task's `Config` adds its hyper-parameters."""

    FREE: ClassVar[tuple[str, ...]] = ()  # fields that change speed, not the algorithm
    OPEN: ClassVar[bool] = False  # whether all runs are in the open division: there is no reference
    REUSED: ClassVar[bool] = True  # if finished runs are reused. False if unseen files decide the result
    OWN_DATA: ClassVar[tuple[str, ...]] = ()  # fields that name the user's custom files
    CLASSES: ClassVar[int | None] = None  # of the metric, an accuracy in %. None: unknown
    DATA_FIELDS: ClassVar[tuple[str, ...]] = ()  # further fields that define how data are split or read

    name: str
    recipe: str
    dataset: str  # the data set's folder below data_root, and the word `prepare` dispatches on
    metric: str  # name of the validation metric that the goal watches
    metric_unit: str  # unit of that metric, for people: "%", "BLEU", ""
    direction: Direction
    goals: Targets | None  # None: a task that measures without a goal, or data for which none is fixed
    time_budget_s: PositiveFloat  # accuracy_after_time: the best validation within this many seconds


Precision = Literal["fp32", "tf32", "bf16", "fp16"]
GPU_ONLY = ("tf32", "fp16")  # formats of a GPU's tensor cores. No CPU has kernels for training in them
SINCE_AMPERE = ("tf32", "bf16")  # formats of GPUs from compute capability 8.0 on
# What an LSTM computes in on a CPU alone: autocast gives cuDNN float16 whatever type is set (torch 2.13,
# aten/src/ATen/cudnn/AutocastRNN.cpp, at::kHalf). So bf16 would be fp16 without a loss scale.
LSTM_CPU_ONLY: tuple[Precision, ...] = ("bf16",)


# torch.compile's backends. max_autotune: inductor, which also measures which kernel is fastest. graphs: steps
# captured as CUDA graphs, of torch's eager kernels or of inductor's.
Compile = Literal["inductor", "max_autotune", "graphs", "inductor_graphs", "aot_eager", "eager"]
CAPTURED: tuple[Compile, ...] = ("graphs", "inductor_graphs")


class TrainingConfig(TaskConfig):
    """The fields that every task with epochs has."""

    PRECISIONS: ClassVar[tuple[Precision, ...]] = ("fp32",)  # what the task can compute in
    CPU_ONLY: ClassVar[tuple[Precision, ...]] = ()  # of these, what it cannot compute in on a GPU
    RECIPE_PRECISION: ClassVar[dict[str, Precision]] = {"cpu": "fp32", "cuda": "fp32"}  # by device
    ONE_SHAPE: ClassVar[bool] = False  # all micro-batches have one shape (TrainingSetup.one_shape)

    batch_size: PositiveInt  # samples a worker and update
    epochs: PositiveInt  # the run ends here when the goal is not reached before
    precision: Precision | None = None  # None: the recipe's for the device, which `compose` puts in its place

    def global_batch(self, workers: int) -> int:
        """Return the samples of one optimizer step over all workers."""
        return self.batch_size * workers


class Peak(FrozenModel):
    """The arithmetic peak of one GPU, or of one node's CPU if it has none, in FLOP/s."""

    fp32: PositiveFloat | None
    tf32: PositiveFloat | None = None
    fp16: PositiveFloat | None
    bf16: PositiveFloat | None
    source: str


class Price(FrozenModel):
    """What one node costs. Every price carries its date and origin."""

    usd_per_hour: PositiveFloat
    usd_per_hour_spot: PositiveFloat | None = None  # None: it has none, or it is unknown
    date: Annotated[str, Field(pattern=DATE)]  # ISO date on which the price was read
    source: str

    @model_validator(mode="after")
    def _spot_is_cheaper(self) -> "Price":
        if self.usd_per_hour_spot is not None and self.usd_per_hour_spot > self.usd_per_hour:
            raise ValueError("usd_per_hour_spot is above usd_per_hour")
        return self


class Machine(FrozenModel):
    """How a cloud names the node, for clusters that `mlbench.cluster up` makes."""

    provider: Literal["gke", "aws"]
    type: str  # machine or instance type, e.g. n1-standard-4
    accelerator: str | None  # GKE's name of a GPU, e.g. nvidia-tesla-t4. None: no GPU, or a part of the type
    place: str  # zone (gke) or region (aws) whose list price the profile states
    disk_type: str | None = None  # of the boot disk. None: the cheapest that the provider has
    local_ssd: bool = False  # whether its NVMe disks, of some TB, take what pods write


class ElectricityGrid(FrozenModel):
    """How much carbon dioxide the electricity at a node's place causes."""

    g_per_kwh: NonNegativeFloat  # g of CO2 equivalents
    date: Annotated[str, Field(pattern=DATE)]  # ISO date on which it was read
    source: str


class Hardware(FrozenModel):
    """The shape and price of one node, and how workers sit on it."""

    name: str
    description: str
    cpus: PositiveInt | None  # usable by workers. None: whatever this machine has
    gpus: Annotated[int, Field(ge=0)]
    gpu_model: str | None  # a part of the name that the driver reports, e.g. "T4"
    # W, the card's largest power limit, in which SXM, PCIe and NVL differ. None: not known.
    gpu_power_w: PositiveFloat | None = None
    gpu_resource: str = "nvidia.com/gpu"  # Kubernetes' name of a GPU
    # CUDA's compute capability, e.g. 7.5. None: not known, or no CUDA.
    capability: PositiveFloat | None = None
    memory_gib: PositiveFloat | None = None  # GiB of a node's main memory. None: not known
    workers_per_node: PositiveInt | None  # None: all workers on one node
    threads_per_worker: PositiveInt | None  # None: the node's CPUs shared out among its workers
    # node: each worker may use the CPUs of one NUMA node alone, that of its GPU
    numa_binding: Literal["none", "node"] = "none"
    network_gbit_per_s: PositiveFloat | None  # of a node's link to other nodes, which its workers share
    network_us: PositiveFloat | None = None  # us, delay of a message between nodes. None: not known
    node_link_gbit_per_s: PositiveFloat | None = None  # inside a node, of a worker in each direction
    node_link_us: PositiveFloat | None = None  # us, delay of a message inside a node
    machine: Machine | None = None  # None: no cloud's
    price: Price | None  # None: not for rent. A cost is then not shown
    peak: Peak | None  # None: unknown. MFU is then not shown
    grid: ElectricityGrid | None = None  # None: unknown. Carbon is then not shown


class Backend(FrozenModel):
    """The torch.distributed backend that the process group is made from.

    A backend's file holds the fields that its library has. A field that is null is left to the library.
    """

    name: str
    device: Literal["cpu", "cuda"]
    module: str | None = None  # imported on every worker before the process group, to register the backend
    # Network interface of all workers. None: the one by which each reaches the head.
    interface: Annotated[str, Field(min_length=1)] | None = None
    timeout_s: PositiveInt  # a collective that takes longer is stuck. Ray Train takes whole seconds
    sockets: PositiveInt | None = None  # TCP connections between two workers. nccl: of each of its threads
    threads: PositiveInt | None = None  # that serve nccl's sockets
    provider: str | None = None  # of the library's way to other hosts, e.g. libfabric's
    algorithm: str | None = None  # of all-reduce


class Cluster(FrozenModel):
    """The Ray cluster. A cluster's module may have a `Config` that adds its fields."""

    name: str
    # More workers than CPUs are allowed, and marked. force: also very many (clusters/placement.py).
    oversubscribe: bool | Literal["force"]


class SyncConfig(FrozenModel):
    """How gradients are combined between workers. A strategy's `Config` adds its fields."""

    CLOSED: ClassVar[bool] = False  # ddp's mathematics: the closed division allows it as its file is
    NEEDS_OPTIMIZER: ClassVar[bool] = False  # a task must step by optimizer.step(), not by other arithmetic

    name: str

    @property
    def restarts(self) -> bool:
        """Whether rank 0's model and optimizer, which a checkpoint holds, are all that a restart needs."""
        return True

    @property
    def own_steps(self) -> bool:
        """Whether a worker steps with its local gradient, so that its loss scale may skip a step alone."""
        return False

    def check(self, *, workers: int, precision: Precision) -> None:
        """Raise UserError if the strategy cannot combine the results of so many workers (at least two)."""


UNIT_BOUNDS = {"%": (0.0, 100.0)}  # what values of a unit can be
METRIC_BOUNDS = {"bleu": (0.0, 100.0), "perplexity": (1.0, math.inf), "cross_entropy": (0.0, math.inf)}


def bounds(metric: str, unit: str) -> tuple[float, float]:
    """Return the least and the greatest value that a metric can have."""
    return METRIC_BOUNDS.get(metric, UNIT_BOUNDS.get(unit, (-math.inf, math.inf)))


class Experiment(FrozenModel):
    """Everything that decides what one run does."""

    task: TaskConfig
    hardware: Hardware
    backend: Backend
    cluster: Cluster
    sync: SyncConfig
    division: Division
    network: Network = HOST
    launcher: Literal["ray", "torchrun", "command"] = "ray"  # command: a custom launcher (mlbench.measure)
    workers: PositiveInt
    scale: Literal["official", "mini"]
    framework: str = TORCH  # records made before there was another lack it
    goal: Literal["official", "light", "none"] | float
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None
    max_failures: Annotated[int, Field(ge=0)]
    compile: Compile | None = None  # older records lack it
    phase_timing: bool
    profile: Annotated[int, Field(ge=0)] = 0  # steps. Records made before there was a profiler lack it
    data_root: Path
    output_root: Path
    tracking_uri: Annotated[str, AfterValidator(check_scheme)] | None
    study: Annotated[str, Field(pattern=r"^\w[\w.-]*$")] | None
    verbose: bool
    force: bool
    # How the experiment differs from the closed reference. `compose` computes it, and the record lists it.
    deviations: tuple[Deviation, ...] = Field(default=(), exclude=True)

    @field_validator("goal", mode="before")
    @classmethod
    def _goal_is_no_switch(cls, goal: Any) -> Any:
        if isinstance(goal, bool):
            raise ValueError("must be official, light, none or a number")
        return goal

    @field_validator("data_root", "output_root", "tracking_uri", mode="before")
    @classmethod
    def _place_is_named(cls, value: Any) -> Any:
        if value == "":
            raise ValueError("must not be empty: leave it out for the default")
        if isinstance(value, str) and value.startswith("$"):
            raise ValueError("the shell did not expand the variable: leave out single quotes")
        return value

    @field_validator("goal")
    @classmethod
    def _goal_can_be_reached(cls, goal: str | float, info: ValidationInfo) -> str | float:
        task = info.data.get("task")
        if task is not None and task.goals is None:
            trains = hasattr(task, "epochs")  # also as a record has it, without the task's Config
            if isinstance(goal, float) and not trains and task.metric != "none":
                return goal
            if isinstance(goal, float) and not trains:
                way = ", or give task.metric=NAME" if hasattr(task, "pattern") else ""
                raise ValueError(f"{task.name} measures without a goal: leave goal out{way}")
            if goal == "light" and trains:
                raise ValueError(f"no goal is fixed for {task.dataset}: leave goal out, or give a number")
        if not isinstance(goal, float) or task is None:
            return goal
        low, high = bounds(task.metric, task.metric_unit)
        if not low <= goal <= high:
            ends = f"between {low:g} and {high:g} {task.metric_unit}" if high < math.inf else f"above {low:g}"
            raise ValueError(f"{task.metric} lies {ends.rstrip()}")
        return goal

    @property
    def target(self) -> Goal | None:
        """The goal as metric, number and direction. None for `goal=none` and if the task fixes none."""
        goals = self.task.goals
        if self.goal == "none" or goals is None and isinstance(self.goal, str):
            return None
        number = getattr(goals, self.goal) if isinstance(self.goal, str) else self.goal
        return Goal(self.task.metric, number, self.task.direction)

    @property
    def store(self) -> str:
        """The MLflow tracking URI. The default is a SQLite file next to the runs."""
        return self.tracking_uri or default_store(self.output_root)

    def plain(self) -> dict[str, Any]:
        """Return the values as JSON types, without credentials: they go into logs and results."""
        values = self.model_dump(mode="json", serialize_as_any=True)
        if self.tracking_uri is not None:
            values["tracking_uri"] = without_credentials(self.tracking_uri)
        if "args" in values["task"]:  # of a script
            values["task"]["args"] = without_credentials(values["task"]["args"])
        return values

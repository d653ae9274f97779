"""Define the record: all that one run measured, with what is needed to trust it and to repeat it.

Types only: `build_record` fills them from the event log, and every reader gets them back with `load`.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from mlbench.config.division import Deviation
from mlbench.config.errors import ResultError
from mlbench.config.experiment import Cluster, Experiment, SyncConfig, TaskConfig
from mlbench.config.goal import Goal
from mlbench.record.cost import Cost
from mlbench.record.energy import Energy
from mlbench.record.noise import GpuUse, Interference
from mlbench.record.phases import LatenessBlock

STATUSES = (
    "goal_reached",
    "goal_not_reached",
    "completed",  # no goal was set: goal=none, or a task without goals
    "diverged",
    "failed",
    "interrupted",
    "preempted",  # its cluster took a node from it, which is no result of the experiment
)
FINISHED = ("goal_reached", "goal_not_reached", "completed", "diverged")
TRACE = r"^profile/rank\d+\.[a-z_]+\.json$"  # of torch.profiler. A path that leads out of the folder is none
Status = Annotated[str, Field(pattern=f"^({'|'.join(STATUSES)})$")]
Row = dict[str, Any]  # of a task's table, whose columns the task names


class Values(BaseModel):
    """Frozen values. An unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RecordedTask(TaskConfig, extra="allow"):
    """A task's recorded configuration, readable without the package that holds the task."""


class RecordedSync(SyncConfig, extra="allow"):
    """A sync strategy's configuration as it was recorded."""


class RecordedCluster(Cluster, extra="allow"):
    """A cluster's configuration as it was recorded."""


_RECORDED = {"task": RecordedTask, "sync": RecordedSync, "cluster": RecordedCluster}


def recorded(experiment: Any) -> Any:
    """Return an experiment, or its JSON, with parts that accept the fields of a plugin."""
    values = experiment.plain() if isinstance(experiment, Experiment) else experiment
    if not isinstance(values, dict):
        return values
    parts = {name: part.model_validate(values[name]) for name, part in _RECORDED.items() if name in values}
    return {**values, **parts}


RecordedExperiment = Annotated[Experiment, BeforeValidator(recorded), PlainSerializer(Experiment.plain)]


class RankStats(Values):
    """One quantity over the ranks, in the unit of the field that holds it."""

    min: float
    mean: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "RankStats":
        """Return the statistics of one value a rank."""
        return cls(min=min(values), mean=math.fsum(values) / len(values), max=max(values))


class Validation(Values):
    """One validation. A metric that was not finite is None."""

    epoch: float  # epochs trained so far, a fraction within one
    step: int  # optimizer steps so far
    elapsed: float  # s from the first access to training data to the validation's end
    wall: float  # s since 1970, on rank 0's clock
    train_loss: float | None  # mean since the validation before, over all ranks
    metrics: dict[str, float | None]  # in the task's units, over the whole validation set
    goal_reached: bool = False


class ValidationInterval(Values):
    """The measurements between two validations, over the ranks."""

    steps: int  # of one rank
    samples: int  # of all ranks, in the record's sample_unit
    phases: dict[str, RankStats]  # s
    overlapped_communication: RankStats | None  # s (None: the step is one compiled program)
    bytes_sent: RankStats | None = None  # of a rank


class WarmUp(Values):
    """The first steps, and later ones that compile, apart from the steady state: docs/statistics.md."""

    steps: int  # of one rank
    samples: int  # of all ranks
    seconds: float  # of the slowest rank
    compilation_s: float = 0.0  # of them, by torch.compile, of the slowest rank
    observation_s: float = 0.0  # of them, in steps that were observed for their FLOP
    phases: dict[str, float] = {}  # s, the mean over the ranks


class RankTimes(Values):
    """The times of one rank in the steady state of a script's run, in s."""

    phases: dict[str, float]
    samples: int = 0
    within: dict[str, float] = {}  # of these and of what is outside the steps: saving, compilation
    late_steps: int = 0  # in which it came last, late by a tenth of the step or more
    late_s: float = 0.0  # how late after the mean of the others, in all of these
    late_parts: dict[str, float] = {}  # how much longer each part of these was than the mean of the others'
    cpu_wait_s: float | None = None  # its main thread could run and had no CPU (None: unknown)
    peak_memory_bytes: int | None = None  # that torch gave out on its GPU (None: a CPU)


class Startup(Values):
    """The contiguous parts of the start-up in order, s. None for parts that were not reached."""

    command: float | None = None  # from the command's start to the cluster's
    cluster: float | None = None  # starting or joining Ray
    scheduling: float | None = None  # placing the workers' processes
    imports: float | None = None  # of torch, on the workers
    process_group: float | None = None
    entering: float | None = None  # until the worker's code runs, unknown on another host
    calibration: float | None = None  # measuring the nodes
    data_opening: float | None = None  # until the first access to training data

    def parts(self) -> dict[str, float]:
        """Return the parts that were reached, by name, in s."""
        return {name: seconds for name, seconds in self if seconds is not None}


class Restart(Values):
    """A failure after which the run went on from its last checkpoint."""

    failures: dict[int, str]  # the last lines of the error, by rank


class Gpu(Values):
    """One GPU as its driver describes it."""

    name: str | None
    memory_bytes: int | None = None
    driver: str | None = None  # version
    power_limit_w: float | None = None  # W that it may take now
    power_limit_default_w: float | None = None
    power_limit_max_w: float | None = None
    sm_clock_max_mhz: float | None = None
    sm_clock_application_mhz: float | None = None  # what an administrator has set
    memory_clock_max_mhz: float | None = None
    ecc: bool | None = None
    mig: bool | None = None  # whether it is divided into parts
    persistence: bool | None = None  # whether its driver stays loaded
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None  # lanes
    nvlinks: int | None = None  # that are up (None: the model has none)

    @property
    def kind(self) -> str:
        """The properties that decide its speed. Cards of one name with other power limits are other cards."""
        name = self.name or "unknown GPU"
        return name if self.power_limit_w is None else f"{name} at {self.power_limit_w:g} W"


class NumaBinding(Values):
    """The CPUs to which a rank was bound."""

    rank: int
    node: int  # NUMA node, the kernel's number
    cpus: str  # as the kernel lists what the rank may use, e.g. 0-23,48-71


class Node(Values):
    """One machine of a run as its processes saw it (None: unknown)."""

    hostname: str
    usable_cpus: int  # what affinity and control groups leave
    os: str | None = None
    kernel: str | None = None
    architecture: str | None = None
    python: str | None = None  # version
    cpu_model: str | None = None
    physical_cpus: int | None = None
    logical_cpus: int | None = None
    affinity_cpus: int | None = None
    cpu_quota: float | None = None  # CPUs
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    gpus: list[Gpu] = []
    gpu_error: str | None = None
    gpu_use: list[GpuUse] = []  # of those that a worker has
    sources: str | None = None  # hash of the mlbench that was imported there
    cuda: str | None = None  # version that torch was built with
    nccl: str | None = None
    transport: dict[str, str] = {}  # reported by the backend's module: library, provider, interface
    environment: dict[str, str] = {}  # variables that change speed or results
    startup_code: dict[str, str] = {}  # what ran before mlbench or shadows it: SHA-256 by name
    warnings: list[str] = []  # what may have made the machine noisy
    threads_per_worker: int | None = None
    numa: list[NumaBinding] = []  # of its ranks (none: not bound)
    ray_node_id: str | None = None
    calibration: dict[str, float] = {}  # rates by name, which ends in the unit (of GPUs the slowest's)
    gpu_calibration: list[dict[str, float]] = []  # of each GPU that a worker has, in the workers' order
    rdma_devices: list[str] | None = None  # by the kernel's name, e.g. mlx5_0 (None: not looked for)
    interference: Interference | None = None  # what else used its CPUs while the run trained
    machine_shared: bool = False  # another run of mlbench measured there at the same time
    data_cached: float | None = None  # share of the data set in memory when the clock started
    energy_j: dict[str, float] = {}  # J by part, first access to data to last validation (none: unreadable)

    @property
    def over_tcp(self) -> bool | None:
        """Whether NCCL's messages to other nodes went through TCP sockets. None: not in its log."""
        network, provider = self.transport.get("network"), self.transport.get("provider", "")
        return None if network is None else network == "Socket" or provider.lower() in ("tcp", "sockets")


class Extended(Values):
    """Further parts by name, whose fields are defined by the packages that measured them."""

    extras: dict[str, Any] = {}  # as JSON types

    @model_validator(mode="before")
    @classmethod
    def _links_were_a_field(cls, values: Any) -> Any:
        """Read records from before parts had a separate place."""
        if not isinstance(values, dict) or "links" not in values:
            return values
        links = values["links"]
        rest = {name: value for name, value in values.items() if name != "links"}
        return rest | ({"extras": {"links": links}} if links is not None else {})


class Git(Values):
    """The state of a checkout."""

    sha: str
    dirty: bool  # whether files differ from the commit


class Software(Values):
    """The software that ran, on the driver's machine (None: unknown)."""

    mlbench: str | None = None  # version
    python: str | None = None  # version
    packages: dict[str, str | None] = {}  # versions by name
    git: Git | None = None  # of the checkout that mlbench was imported from; None: not a checkout
    script_git: Git | None = None  # of the folder in which a measured command ran
    sources: str | None = None  # SHA-256 of mlbench's sources and configuration
    code: str | None = None  # SHA-256 of the sources, plugins' too, that decide a measurement
    command: str | None = None
    environment: dict[str, str] = {}  # variables that change speed or results
    startup_code: dict[str, str] = {}  # what ran before mlbench or shadows it: SHA-256 by name


class Imported(Values):
    """The archive that an imported run was read from."""

    file: str
    sha256: str


class Operator(Values):
    """An operator as torch.profiler saw it on rank 0, without those that it calls."""

    name: str
    calls: int
    seconds: float  # of the device that trained, over the steps that were recorded
    share: float  # of all operators' seconds


class ArithmeticPeak(Values):
    """What the MFU of a script is a share of."""

    flops_per_s: float  # of one device, dense
    devices: int  # of all ranks
    precision: str  # in which most FLOP of the observed step were made
    source: str


class Profile(Values):
    """What torch.profiler recorded. Its traces lie in the run's folder."""

    steps: int  # of each rank
    operators: list[Operator] = []  # the most expensive, in descending order
    files: list[Annotated[str, Field(pattern=TRACE)]] = []  # below the run's folder


class RayIds(Values):
    """The names of the run in Ray."""

    job_id: str | None = None
    node_ids: list[str] = []


class JobSubmission(Values):
    """The execution of a submitted run by a cluster: the value of the log's `submission`."""

    name: str  # of the RayJob
    namespace: str
    command: str  # that submitted it, without credentials
    image: str | None = None
    head_pod: dict[str, Any] = {}  # what was merged into the pods' templates in addition to mlbench's parts
    worker_pod: dict[str, Any] = {}
    ray_cluster: str | None = None
    created: str | None = None  # ISO 8601, by the cluster's clock
    started: str | None = None  # ISO 8601, when the command began in the cluster
    pods: list[dict[str, str]] = []  # of Ray: node, zone, machine type, topology domain
    preempted: str | None = None  # why the run was, one sentence


class RunStart(Values):
    """The facts known when a run begins: the value of the log's `run_configuration`."""

    run_id: str
    key: str
    command: str
    mlbench: str  # version
    experiment: RecordedExperiment
    seed: int
    begun: float  # s since 1970, when the command started
    submitted: float | None = None  # s since 1970, when the cluster was requested (None: it already existed)
    deviations: list[Deviation] = []
    warnings: list[str] = []
    software: Software = Software()
    source: str = "mlbench"
    imported: Imported | None = None


class WorkerResult(Values):
    """What the workers report at their end and the log does not yet hold."""

    status: Status
    error: str | None = None
    sample_unit: str = "samples"  # what `samples` counts: images, rows, tokens
    flops_per_sample: float | None = None
    flops_lacking: str | None = None  # why a script has none
    peak: ArithmeticPeak | None = None  # of a script
    gradient_bytes: int | None = None  # of one worker and step
    peak_memory_bytes: int | None = None  # of a GPU that torch's allocator gave out, on any rank
    data_hash: str | None = None  # of the data set's manifest and content, checked before training
    data_rows: dict[str, int] = {}  # by split
    data_files: dict[str, str] = {}  # SHA-256 of the prepared file, by split
    data_inputs: dict[str, str] = {}  # SHA-256 of what the data set was made from, by name
    data_changed: bool = False  # while the run was training on it
    table: list[Row] = []
    profile: Profile | None = None
    nodes: list[Node] = []
    started_at: float | None = None  # s since 1970, the first access to training data
    entered: float | None = None  # s since 1970, the first line of the worker's code
    calibrated: float | None = None  # s since 1970, when every node had been measured


class RunEnd(Extended):
    """The end of the run as the driver saw it: the value of the log's `run_result`."""

    status: Status | None  # None: what the workers report
    error: str | None = None
    ended: float  # s since 1970
    stamps: dict[str, float] = {}  # s since 1970, of the connection to the cluster
    hostname: str | None = None  # of the driver
    oversubscribed: bool = False
    interference: Interference | None = None  # what else used this machine's CPUs while Ray started
    machine_shared: bool = False  # another run of mlbench measured here at the same time
    ray: RayIds = RayIds()
    result: WorkerResult | None = None  # None: the workers returned nothing


class Record(Extended):
    """One run. Durations are in s. Times over ranks are the slowest rank's unless RankStats."""

    source: str = "mlbench"  # "mlbench-published": read from a results archive of the original MLBench
    imported: bool = False  # measured elsewhere, its claims unchecked here
    run_id: str  # the name of its folder, begins with the time
    key: str  # hash of all that decides a measurement
    mlbench: str  # version
    command: str  # repeats the run, without credentials
    experiment: RecordedExperiment  # the resolved configuration, without credentials
    deviations: list[Deviation]  # from the closed division
    # No objection to it as one of the runs of an official point. "official" in older records.
    eligible: bool = Field(validation_alias=AliasChoices("eligible", "official"))
    official_reasons: list[str]  # why no official point has it, one sentence each
    status: Status
    goal: Goal | None  # None: no goal
    error: str | None  # one sentence
    seed: int
    workers: int
    oversubscribed: bool  # more threads computed than there were CPUs
    caveats: list[str]  # why this number is not what it seems, one sentence each
    disturbances: list[str] = []  # those of them about other load on the machine
    contradictions: list[str] = []  # contradictions of its log, one sentence each: it then counts nowhere
    warnings: list[str]  # what may have made the machine noisy, one sentence each
    started_at: str  # ISO 8601, when the command started
    ended_at: str  # ISO 8601
    wall: float  # s from the command's start to the run's end
    startup: Startup
    startup_time: float | None  # s from the command's start to the first access to training data
    time_to_accuracy: float | None  # s from the first access to training data (None: goal not reached)
    accuracy_after_time: float | None  # best validation within the task's time budget
    best: float | None  # best validation value of the goal's metric, in the task's unit
    train_time: float | None  # s in batches without data_wait (the clock of the original MLBench)
    epochs: float  # trained
    steps: int  # optimizer steps
    samples: int  # trained, of all ranks
    sample_unit: str  # of samples: images, rows, tokens
    samples_per_s: float | None  # of all ranks, without warm_up
    samples_per_s_per_worker: float | None
    tokens_per_s: float | None = None  # of all ranks of a script whose model is given integers
    warm_up: WarmUp | None = None  # whose steps are in no rate, phase or percentile (None: no warm-up)
    unsteady: bool = False  # whether a script ended before its steady state, so that all is in these
    ranks: list[RankTimes] = []  # of a script
    phases: dict[str, RankStats]  # s in each phase of a batch, over the whole run without warm_up
    overlapped_communication: RankStats | None  # s of communication while backward computed
    exposed_communication_share: float | None  # of the time in batches
    outside: dict[str, RankStats]  # s outside the batches: loading, validation, report, warm_up
    step_s: dict[str, float]  # s, with p50, p95, p99 over steps and ranks
    stamp_every: int = 1  # one of so many steps was stamped, and phases and step_s rest on those
    lateness: list[list[LatenessBlock]] = []  # of each rank, over the run, empty if nothing was compared
    clock_error_s: float = 0.0  # bound of the error with which clocks of several hosts were compared
    flops_per_sample: float | None
    flops_lacking: str | None = None  # why a script has none
    gradient_bytes: int | None = None  # of one worker and step (None: nothing was trained)
    peak_memory_bytes: int | None = None  # that torch gave out on the fullest GPU (None: trained on CPUs)
    bytes_sent_per_step: RankStats | None = None  # by a rank, on average, what validations average included
    model_flops_per_s: float | None  # of all ranks
    mfu: float | None  # model FLOP/s over the peak, that of the hardware profile for the suite's tasks
    peak: ArithmeticPeak | None = None  # of a script
    cost: Cost | None  # USD (None: the hardware profile has no price)
    energy: Energy | None = None  # J (None: not readable on the nodes)
    validations: list[Validation]
    intervals: list[ValidationInterval]  # one a validation
    restarts: list[Restart]
    nodes: list[Node]
    software: Software
    data_hash: str | None  # of the prepared data set's manifest and content
    data_rows: dict[str, int] = {}  # by split
    ray: RayIds
    submission: JobSubmission | None = None  # None: the command ran on the cluster itself
    table: list[Row]  # of tasks that measure without training
    profile: Profile | None = None  # None: no profile=N, or too few steps for its warm-up
    recorded_in: str | None = Field(default=None, exclude=True)  # the output_root, if `load` finds another

    @property
    def timed_steps(self) -> int:
        """The number of steps of one rank that the phases hold."""
        return self.steps - (self.warm_up.steps if self.warm_up else 0)

    @property
    def origin(self) -> str:
        """The origin of the numbers: mlbench (measured here), imported, copied, or another suite's name."""
        if self.source != "mlbench":
            return self.source
        return "imported" if self.imported else "copied" if self.recorded_in else self.source

    @property
    def is_cost_elsewhere(self) -> bool:
        """Whether the price is another machine's, by a caveat or because the command changed the profile."""
        changed = {f"hardware.{name}" for name in ("cpus", "gpus", "gpu_model", "workers_per_node")}
        mismatch = any("this hardware's" in caveat for caveat in self.caveats)
        return mismatch or any(deviation.field in changed for deviation in self.deviations)

    @property
    def end_time(self) -> float:
        """The end of the run, s since 1970."""
        return datetime.fromisoformat(self.ended_at).timestamp()

    def save(self, folder: Path) -> None:
        """Write record.json atomically, so that readers never find a part of it."""
        whole = folder / "record.json.part"
        try:
            whole.write_text(self.model_dump_json(indent=2), "utf-8")
            whole.replace(folder / "record.json")
        except OSError as error:
            whole.unlink(missing_ok=True)
            hint = "the event log has it: free space, then mlbench results sync writes the record"
            raise ResultError(
                f"cannot write {folder / 'record.json'}: {error.strerror}", hint=hint
            ) from error

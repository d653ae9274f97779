"""All that one run measured, with what is needed to trust it and to repeat it.

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
from mlbench.config.errors import UserError
from mlbench.config.experiment import Cluster, Experiment, SyncConfig, TaskConfig
from mlbench.config.goal import Goal
from mlbench.record.cost import Cost
from mlbench.record.energy import Energy
from mlbench.record.noise import Interference
from mlbench.record.phases import LatenessBlock

STATUSES = (
    "goal_reached",
    "goal_not_reached",
    "completed",  # nothing was asked of it: goal=none, or a task without goals
    "diverged",
    "failed",
    "interrupted",
    "preempted",  # its cluster took a node from it, so it says nothing about the experiment
)
FINISHED = ("goal_reached", "goal_not_reached", "completed", "diverged")
TRACE = r"^profile/rank\d+\.[a-z_]+\.json$"  # of torch.profiler; a path that leads out of the folder is none
Status = Annotated[str, Field(pattern=f"^({'|'.join(STATUSES)})$")]
Row = dict[str, Any]  # of a task's table; the task names its columns


class Values(BaseModel):
    """Frozen values; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RecordedTask(TaskConfig, extra="allow"):
    """A task's configuration as it was recorded; readable without the package that holds the task."""


class RecordedSync(SyncConfig, extra="allow"):
    """A sync strategy's configuration as it was recorded."""


class RecordedCluster(Cluster, extra="allow"):
    """A cluster's configuration as it was recorded."""


_RECORDED = {"task": RecordedTask, "sync": RecordedSync, "cluster": RecordedCluster}


def recorded(experiment: Any) -> Any:
    """Return an experiment, or its JSON, with parts that accept the fields of a plug-in."""
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

    epoch: float  # epochs trained so far; a fraction within one
    step: int  # optimizer steps so far
    elapsed: float  # s from the first access to training data to the validation's end
    wall: float  # s since 1970, on rank 0's clock
    train_loss: float | None  # mean since the validation before, over all ranks
    metrics: dict[str, float | None]  # in the task's units, over the whole validation set
    goal_reached: bool = False


class ValidationInterval(Values):
    """What was measured between two validations, over the ranks."""

    steps: int  # of one rank
    samples: int  # of all ranks, in the record's sample_unit
    phases: dict[str, RankStats]  # s
    overlapped_communication: RankStats | None  # s; None: the step is one compiled program
    bytes_sent: RankStats | None = None  # of a rank


class Startup(Values):
    """The parts of the start-up in their order, s; contiguous, and None where it did not get so far."""

    command: float | None = None  # from the command's start to the cluster's
    cluster: float | None = None  # starting or joining Ray
    scheduling: float | None = None  # placing the workers' processes
    imports: float | None = None  # of torch, on the workers
    process_group: float | None = None
    entering: float | None = None  # until the worker's own code runs; unknown on another host
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


class Node(Values):
    """One machine of a run as its processes saw it; None: not known."""

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
    sources: str | None = None  # hash of the mlbench that was imported there
    cuda: str | None = None  # version that torch was built with
    nccl: str | None = None
    transport: dict[str, str] = {}  # what the backend's module says of itself: library, provider, interface
    environment: dict[str, str] = {}  # variables that change speed or results
    startup_code: dict[str, str] = {}  # what ran before mlbench or stands in front of it: SHA-256 by name
    warnings: list[str] = []  # what may have made the machine noisy
    threads_per_worker: int | None = None
    ray_node_id: str | None = None
    calibration: dict[str, float] = {}  # rates by name, the name ends in the unit; of GPUs the slowest's
    gpu_calibration: list[dict[str, float]] = []  # of each GPU that a worker has, in the workers' order
    rdma_devices: list[str] | None = None  # by the kernel's name, e.g. mlx5_0; None: not looked for
    interference: Interference | None = None  # what else used its CPUs while the run trained
    machine_shared: bool = False  # another run of mlbench measured there at the same time
    data_cached: float | None = None  # share of the data set in memory when the clock started
    energy_j: dict[str, float] = {}  # J by part, first access to data to last validation; none: unreadable


class Extended(Values):
    """What has further parts, by name, whose fields the packages that measured them know."""

    extras: dict[str, Any] = {}  # as JSON types

    @model_validator(mode="before")
    @classmethod
    def _links_were_a_field(cls, values: Any) -> Any:
        """Read what was written before parts had a place of their own."""
        if not isinstance(values, dict) or "links" not in values:
            return values
        links = values["links"]
        rest = {name: value for name, value in values.items() if name != "links"}
        return rest | ({"extras": {"links": links}} if links is not None else {})


class Git(Values):
    """The state of the checkout that mlbench was imported from."""

    sha: str
    dirty: bool  # whether files differ from the commit


class Software(Values):
    """What ran, on the driver's machine; None: not known."""

    mlbench: str | None = None  # version
    python: str | None = None  # version
    packages: dict[str, str | None] = {}  # versions by name
    git: Git | None = None  # None: not a checkout
    sources: str | None = None  # SHA-256 of mlbench's sources and configuration
    code: str | None = None  # SHA-256 of the sources, plug-ins' too, that decide a measurement
    command: str | None = None
    environment: dict[str, str] = {}  # variables that change speed or results
    startup_code: dict[str, str] = {}  # what ran before mlbench or stands in front of it: SHA-256 by name


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


class Profile(Values):
    """What torch.profiler recorded; its traces lie in the run's folder."""

    steps: int  # of each rank
    operators: list[Operator] = []  # the dearest, dearest first
    files: list[Annotated[str, Field(pattern=TRACE)]] = []  # below the run's folder


class RayIds(Values):
    """By what Ray knew the run."""

    job_id: str | None = None
    node_ids: list[str] = []


class JobSubmission(Values):
    """How a cluster carried out a run that was submitted to it: the value of the log's `submission`."""

    name: str  # of the RayJob
    namespace: str
    command: str  # that submitted it, without credentials
    image: str | None = None
    head_pod: dict[str, Any] = {}  # what was merged into the pods' templates beyond mlbench's own
    worker_pod: dict[str, Any] = {}
    ray_cluster: str | None = None
    created: str | None = None  # ISO 8601, by the cluster's clock
    started: str | None = None  # ISO 8601, when the command began in the cluster
    pods: list[dict[str, str]] = []  # of Ray: node, zone, machine type, topology domain
    preempted: str | None = None  # why the run was, one sentence


class RunStart(Values):
    """What is known when a run begins: the value of the log's `run_configuration`."""

    run_id: str
    key: str
    command: str
    mlbench: str  # version
    experiment: RecordedExperiment
    seed: int
    begun: float  # s since 1970, when the command started
    submitted: float | None = None  # s since 1970, when the cluster was asked for; None: it was there
    deviations: list[Deviation] = []
    warnings: list[str] = []
    software: Software = Software()
    source: str = "mlbench"
    imported: Imported | None = None


class WorkerResult(Values):
    """What the workers know at their end and the log does not yet hold."""

    status: Status
    error: str | None = None
    sample_unit: str = "samples"  # what `samples` counts: images, rows, tokens
    flops_per_sample: float | None = None
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
    entered: float | None = None  # s since 1970, the first line of the worker's own code
    calibrated: float | None = None  # s since 1970, when every node had been measured


class RunEnd(Extended):
    """How the driver saw the run end: the value of the log's `run_result`."""

    status: Status | None  # None: what the workers say
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
    """One run. Durations are in s; times over ranks are the slowest rank's unless RankStats."""

    source: str = "mlbench"  # "mlbench-published": read from a results archive of the original MLBench
    imported: bool = False  # measured elsewhere; what it claims was not checked here
    run_id: str  # the name of its folder; begins with the time
    key: str  # hash of all that decides a measurement
    mlbench: str  # version
    command: str  # repeats the run, without credentials
    experiment: RecordedExperiment  # the resolved configuration, without credentials
    deviations: list[Deviation]  # from the closed division
    # Nothing speaks against it as one of the runs of an official point; "official" in records of before.
    eligible: bool = Field(validation_alias=AliasChoices("eligible", "official"))
    official_reasons: list[str]  # why no official point has it, one sentence each
    status: Status
    goal: Goal | None  # None: none was asked
    error: str | None  # one sentence
    seed: int
    workers: int
    oversubscribed: bool  # more threads computed than there were CPUs
    caveats: list[str]  # why this number is not what it seems, one sentence each
    disturbances: list[str] = []  # those of them that tell what else the machine did meanwhile
    contradictions: list[str] = []  # where its log contradicts itself, one sentence each: it counts nowhere
    warnings: list[str]  # what may have made the machine noisy, one sentence each
    started_at: str  # ISO 8601, when the command started
    ended_at: str  # ISO 8601
    wall: float  # s from the command's start to the run's end
    startup: Startup
    startup_time: float | None  # s from the command's start to the first access to training data
    time_to_accuracy: float | None  # s from the first access to training data; None: goal not reached
    accuracy_after_time: float | None  # best validation within the task's time budget
    best: float | None  # best validation value of the goal's metric, in the task's unit
    train_time: float | None  # s in batches without data_wait (the clock of the original MLBench)
    epochs: float  # trained
    steps: int  # optimizer steps
    samples: int  # trained, of all ranks
    sample_unit: str  # of samples: images, rows, tokens
    samples_per_s: float | None  # of all ranks
    samples_per_s_per_worker: float | None
    phases: dict[str, RankStats]  # s in each phase of a batch, over the whole run
    overlapped_communication: RankStats | None  # s of communication while backward computed
    exposed_communication_share: float | None  # of the time in batches
    outside: dict[str, RankStats]  # s outside the batches: loading, validation, report
    step_s: dict[str, float]  # s; p50, p95, p99 over steps and ranks
    stamp_every: int = 1  # one of so many steps was stamped; phases and step_s rest on those
    lateness: list[list[LatenessBlock]] = []  # of each rank, over the run; empty where nothing was compared
    clock_error_s: float = 0.0  # bound of the error with which clocks of several hosts were compared
    flops_per_sample: float | None
    gradient_bytes: int | None = None  # of one worker and step; None: nothing was trained
    peak_memory_bytes: int | None = None  # that torch gave out on the fullest GPU; None: trained on CPUs
    bytes_sent_per_step: RankStats | None = None  # by a rank, on average, what validations average included
    model_flops_per_s: float | None  # of all ranks
    mfu: float | None  # model FLOP/s over the peak of the hardware profile
    cost: Cost | None  # USD; None: the hardware profile has no price
    energy: Energy | None = None  # J; None: the nodes let nobody read it
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
    recorded_in: str | None = Field(default=None, exclude=True)  # the output_root, where `load` finds another

    @property
    def origin(self) -> str:
        """Where the numbers come from: mlbench (measured here), imported, copied, or another suite's name."""
        if self.source != "mlbench":
            return self.source
        return "imported" if self.imported else "copied" if self.recorded_in else self.source

    @property
    def is_cost_elsewhere(self) -> bool:
        """Whether the price is another machine's: a caveat says so, or the command changed the profile."""
        changed = {f"hardware.{name}" for name in ("cpus", "gpus", "gpu_model", "workers_per_node")}
        mismatch = any("this hardware's" in caveat for caveat in self.caveats)
        return mismatch or any(deviation.field in changed for deviation in self.deviations)

    @property
    def end_time(self) -> float:
        """When the run ended, s since 1970."""
        return datetime.fromisoformat(self.ended_at).timestamp()

    def save(self, folder: Path) -> None:
        """Write record.json; who finds it finds all of it."""
        whole = folder / "record.json.part"
        try:
            whole.write_text(self.model_dump_json(indent=2), "utf-8")
            whole.replace(folder / "record.json")
        except OSError as error:
            whole.unlink(missing_ok=True)
            hint = "the event log has it: python -m mlbench.results sync makes it once there is space"
            raise UserError(f"cannot write {folder / 'record.json'}: {error.strerror}", hint=hint) from error

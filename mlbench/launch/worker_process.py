"""What runs on a worker: it describes its node, builds the Worker, runs the task and reports the result."""

import json
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbench import clock
from mlbench.clusters import calibrate, node
from mlbench.clusters.energy_counters import EnergyMeter
from mlbench.clusters.machine_lock import MachineLock
from mlbench.clusters.monitor import CpuUse, NodeMonitor, own_processes
from mlbench.config import plugins
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.launch import numa_binding, process_group
from mlbench.launch.failures import name_missing_rank, source_line
from mlbench.launch.heartbeat import HeartbeatClient
from mlbench.launch.report_log import TRACES, ReportLog
from mlbench.record import node_types
from mlbench.record.messages import Report
from mlbench.record.record import Node, NumaBinding, Profile, WorkerResult
from mlbench.tasks import registry
from mlbench.training import compilation, timer

if TYPE_CHECKING:
    from mlbench.datasets import verify
    from mlbench.training.worker import State

CALIBRATION_WAIT_S = 120.0  # s that a rank waits for its node's calibration, which takes 2 s when idle


@dataclass(frozen=True)
class WorkerSpec:
    """What every worker gets. Pickled by Ray, so it holds plain values only.

    - heartbeats: (host, port) of the driver's server. token: what it requires.
    - log: the event log's absolute path on the driver's machine.
    - driver: the driver's process id if it is on the workers' machine, whose lock it then holds.
    - epoch: what the driver's wall clock counts from.
    """

    experiment: Experiment
    seed: int
    threads: int
    heartbeats: tuple[str, int]
    token: str
    log: str
    driver: int | None
    epoch: clock.ClockEpoch


@dataclass(frozen=True)
class RankContext:
    """Which of the workers a process is, as its launcher set it."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """Run the task on this worker and report the result to the event log. Every rank takes part."""
    from mlbench.datasets import page_cache, verify
    from mlbench.training import loop

    spec: WorkerSpec = config["spec"]
    clock.adopt(spec.epoch)
    entered = clock.wall()
    experiment = spec.experiment
    if experiment.framework != plugins.TORCH:
        plugins.framework(experiment.framework).require()
    compilation.require(experiment.compile, experiment.backend.device)
    worker = build_worker(spec)
    task = registry.load(experiment.task.name)
    implementation = plugins.implementation("task", experiment.task.name, experiment.framework)
    # Every rank looks, so that all end alike: no rank waits for hours while rank 0 downloads on a paid node.
    registry.require_data(experiment.task, experiment.scale, experiment.data_root)
    if worker.rank == 0:
        worker.heartbeat({"doing": "checking the data"})
    if worker.local_rank == 0:
        checked_data(task.prepare(experiment.task, experiment.data_root))  # hashed once a node
    if worker.rank == 0:
        worker.heartbeat({"doing": "calibrating the nodes"})
    description = describe_node(spec) if worker.local_rank == 0 else None
    first_ranks = [rank for rank, local in enumerate(worker.gather(worker.local_rank)) if local == 0]
    process_group.await_keys([f"calibrated/{rank}" for rank in first_ranks], CALIBRATION_WAIT_S)
    worker.barrier()
    context = rank_context(experiment.launcher)
    gpu = rank_gpu(experiment, context)
    gpus = node_gpus(worker, gpu, node_rank=context.node_rank)
    if description is not None and gpus:
        description = with_gpus(description, [rates for _, rates in gpus])
    described = _gathered([description] if description else [], worker)
    require_fit(described, experiment, spec.log, worker.gather(_first_line(spec.log)))
    bound_to = None
    if experiment.hardware.numa_binding == "node":
        address = None if gpu is None else numa_binding.address(gpu)
        bound_to = numa_binding.choose(worker, context.local_world_size, spec.threads, address)
    if worker.rank == 0:
        worker.heartbeat({"doing": "opening the data and building the model"})
    folder = task.prepare(experiment.task, experiment.data_root)
    data, before = watched_data(folder, worker)
    if description is not None and data is not None:
        cached = page_cache.share(folder / name for name in before)
        description = description.model_copy(update={"data_cached": cached})
    calibrated = clock.wall()
    ranks = worker.gather([context.node_rank, os.getpid()])
    pids = [pid for machine, pid in ranks if machine == context.node_rank]
    try:
        with observed(description, spec, worker, gpus=[uuid for uuid, _ in gpus], pids=pids) as nodes:
            # Only now: what describes, calibrates and watches the node is to see all of its CPUs.
            numa = numa_binding.bind(worker, context.node_rank, *bound_to) if bound_to else []
            if hasattr(implementation, "measure"):
                result = implementation.measure(experiment.task, worker)
            else:
                result = loop.train(implementation.build(experiment.task, worker), worker)
    except UserError:
        raise
    except Exception as error:
        error.add_note(source_line(error))
        raise name_missing_rank(error, worker) from error
    changed = any(worker.gather(data is not None and verify.changed(folder, before)))
    hosts = _gathered([_completed(node, result, numa) for node in nodes], worker)
    outcome = WorkerResult(
        status=result.status,
        error=result.error,
        sample_unit=result.unit,
        flops_per_sample=result.flops_per_sample,
        flops_lacking=result.flops_lacking,
        peak=node_types.peak(experiment, hosts, result.precision, result.devices),
        gradient_bytes=result.gradient_bytes,
        peak_memory_bytes=max(filter(None, worker.gather(result.peak_memory_bytes)), default=None),
        table=result.table,
        profile=_profile(result.profile, worker),
        nodes=hosts,
        started_at=worker.timer.started_at or None,  # of a script that has made no step
        entered=entered,
        calibrated=calibrated,
        data_changed=changed,
        **({} if data is None else data._asdict()),
    )
    # The log gets what it does not hold yet. Once this is there, the run has finished.
    traces = result.files | ({} if result.profile is None else result.profile.files)
    worker.report_validation(end_message(worker.rank, outcome, traces), None)


def end_message(rank: int, outcome: WorkerResult, traces: dict[str, bytes]) -> dict[str, Any]:
    """Return what a rank reports at its end: the outcome is rank 0's, each rank adds its traces."""
    return {"rank": rank, "result": outcome.model_dump(mode="json") if rank == 0 else None, TRACES: traces}


def checked_data(folder: Path) -> "verify.Content | None":
    """Return what a task's prepared data set holds. Raises UserError if a file has changed since."""
    from mlbench.datasets import arrow, verify

    return verify.content(folder) if (folder / arrow.MANIFEST).exists() else None


def watched_data(folder: Path, worker: Any) -> "tuple[verify.Content | None, dict[str, verify.State]]":
    """Return what the data set holds, alike on every rank, and its files' states before they were checked.

    Raises UserError if a file is not what was prepared, or if the nodes hold different data sets.
    """
    from mlbench.datasets import arrow, verify

    before = verify.watch(folder) if (folder / arrow.MANIFEST).exists() else {}
    data = checked_data(folder)
    if len({json.dumps(each, sort_keys=True) for each in worker.gather(data and data._asdict())}) > 1:
        raise UserError(
            f"the nodes hold different data sets in {folder}", hint="prepare the same one on every node"
        )
    return data, before


def build_worker(spec: WorkerSpec) -> Any:
    """Build this process's Worker from its launcher's context and the process group."""
    import torch

    from mlbench.training import precision
    from mlbench.training.worker import Worker, control_group

    experiment = spec.experiment
    precision.allow_tf32(False)
    torch.set_num_threads(spec.threads)
    os.environ["OMP_NUM_THREADS"] = str(spec.threads)  # Ray set 1, and loaders inherit this
    context = rank_context(experiment.launcher)
    device, gpu = torch.device("cpu"), rank_gpu(experiment, context)
    if gpu is not None:
        torch.cuda.set_device(gpu)
        device = gpu if experiment.framework == plugins.TORCH else device
    rank, world_size = context.rank, context.world_size
    worker = Worker(
        rank=rank,
        world_size=world_size,
        local_rank=context.local_rank,
        device=device,
        seed=spec.seed,
        data_root=experiment.data_root,
        sync=experiment.sync,
        backend=experiment.backend.name,
        timer=timer.PhaseTimer(str(device), enabled=experiment.phase_timing),
        goal=experiment.target,
        heartbeat=HeartbeatClient(spec.heartbeats, token=spec.token, rank=rank),
        keep_checkpoints=experiment.max_failures > 0,
        resume=_resume() if experiment.launcher == "ray" else None,
        compile=experiment.compile,
        profile_steps=experiment.profile,
        control=control_group(experiment.backend.timeout_s) if world_size > 1 else None,
    )
    worker.report_validation = partial(_report, rank)
    if experiment.launcher == "torchrun":
        from mlbench.launch import torchrun

        log = ReportLog(Path(spec.log))
        worker.report_validation = lambda message, _: torchrun.report(
            log, worker, {**message, "hostname": platform.node()}
        )
    return worker


def rank_context(launcher: str) -> RankContext:
    """Return which of the workers this process is."""
    if launcher == "torchrun":
        from mlbench.launch import torchrun

        return torchrun.context()
    import ray.train

    context = ray.train.get_context()
    return RankContext(
        context.get_world_rank(),
        context.get_world_size(),
        context.get_local_rank(),
        context.get_local_world_size(),
        context.get_node_rank(),
    )


def rank_gpu(experiment: Experiment, context: RankContext) -> Any:
    """Return this rank's GPU as torch names it, also if another framework trains there. None on CPUs."""
    import torch

    if experiment.backend.device != "cuda":
        return None
    if experiment.launcher == "torchrun" or experiment.framework != plugins.TORCH:
        return torch.device("cuda", context.local_rank)
    from ray.train.torch import get_device

    return get_device()


def described() -> Node:
    """Return this node. Any failure is one of its warnings."""
    try:
        return node.describe()
    except Exception as error:
        warning = f"{platform.node()} could not be described: {error}"
        return Node(hostname=platform.node(), usable_cpus=os.cpu_count() or 1, warnings=[warning])


def describe_node(spec: WorkerSpec) -> Node:
    """Return this node, calibrated. Any failure is one of its warnings.

    Before the training, so that nothing that fails here can happen to a finished run.
    """
    description = described()
    calibration, warnings = {}, description.warnings
    try:
        calibration = calibrate.calibrate(description.usable_cpus, devices=["cpu"], clock=clock.monotonic)
    except Exception as error:  # e.g. memory that ran out
        warnings = [*warnings, f"{description.hostname} could not be calibrated: {error}"]
    process_group.set_key(f"calibrated/{os.environ['RANK']}")
    more = {"calibration": calibration, "warnings": warnings, "threads_per_worker": spec.threads}
    more |= {"transport": process_group.describe(spec.experiment.backend.module)}
    if spec.experiment.launcher == "ray":
        import ray

        more |= {"ray_node_id": ray.get_runtime_context().get_node_id()}
    return description.model_copy(update=more)


def node_gpus(worker: Any, gpu: Any, *, node_rank: int) -> list[tuple[str, dict[str, float]]]:
    """Return the UUID and the rates of each GPU that this node's workers have, in their order.

    All are calibrated at once, as they compute. Every rank must call this, after the nodes' CPUs. An error of
    one leaves its rates empty. The list is empty if `gpu`, this rank's, is None.
    """
    import torch

    if gpu is None:
        return []
    rates = dict[str, float]()
    with suppress(RuntimeError):  # e.g. memory that ran out
        rates = calibrate.calibrate(torch.get_num_threads(), devices=["cuda"], clock=clock.monotonic)
    torch.cuda.empty_cache()  # 1.7 GB of blocks, which a script's process or another framework may need
    own = [f"GPU-{torch.cuda.get_device_properties(gpu).uuid}", rates]
    every = sorted(worker.gather([node_rank, worker.local_rank, own]), key=lambda each: each[:2])
    return [tuple(gpu) for node, _, gpu in every if node == node_rank]


def with_gpus(description: Node, rates: list[dict[str, float]]) -> Node:
    """Return a node's description with its GPUs' calibration, and a warning for each that is slow."""
    if not all(rates):
        enabled = any(rates) or description.calibration  # else MLBENCH_CALIBRATION_S is 0
        missing = [f"a GPU of {description.hostname} could not be calibrated"] if enabled else []
        return description.model_copy(update={"warnings": [*description.warnings, *missing]})
    slow = [f"{description.hostname}: {sentence}" for sentence in calibrate.slow_gpus(rates)]
    calibration = {**description.calibration, **calibrate.slowest(rates)}
    more = {"calibration": calibration, "gpu_calibration": rates, "warnings": [*description.warnings, *slow]}
    return description.model_copy(update=more)


def require_fit(nodes: list[Node], experiment: Experiment, log: str, lines: list[str | None]) -> None:
    """Raise UserError, with all that is wrong, for nodes that differ or lack the files of a restart.

    - lines: the first line of the event log `log` as each rank reads it, which no other log has. None: it
      does not see the driver's folder, with a restart's checkpoint.
    """
    sentences, hints = [], []
    mixture = None if experiment.network.emulated else node_types.mixture(nodes)
    if mixture and experiment.division.name == "closed":
        sentences.append(f"{mixture}, and division=closed compares runs on nodes of one type")
        hints.append("choose nodes of one type, or give division=open, which records their types")
    if experiment.max_failures and (None in lines or len(set(lines)) > 1):
        blind = ", ".join(str(rank) for rank, line in enumerate(lines) if line is None)
        ranks = f"rank {blind} does not see" if blind else "the ranks see different folders in"
        root = Path(log).parent.parent
        sentences.append(f"max_failures= needs an output_root that all nodes share: {ranks} {root}")
        hints.append("name a shared folder with output_root=, or leave max_failures= out")
    if sentences:
        raise UserError("; ".join(sentences), hint="; ".join(hints))


def _first_line(log: str) -> str | None:
    try:
        with open(log) as file:
            return file.readline()
    except OSError:
        return None


@contextmanager
def observed(
    description: Node | None, spec: WorkerSpec, worker: Any, *, gpus: Sequence[str], pids: Sequence[int]
) -> Iterator[list[Node]]:
    """Watch a node while the task runs there. The list gets its description with what was seen.

    Empty on ranks that describe no node. gpus: the UUIDs of those that the node's workers have,
    and pids: their processes.
    """
    nodes: list[Node] = []
    if description is None:
        yield nodes
        return
    lock = None if spec.driver is not None else MachineLock().acquire(wait=False)
    roots = () if spec.driver is None else (spec.driver,)
    meter = EnergyMeter(gpus=gpus)
    context = rank_context(spec.experiment.launcher)
    name = None if context.local_world_size == context.world_size else f"node_{context.node_rank}"
    with NodeMonitor(node=name, meter=meter, gpus=gpus, pids=pids) as monitor:
        worker.drain_node_metrics, worker.read_energy = monitor.drain, meter.read
        cpu_use = CpuUse(own=lambda: own_processes(roots))
        yield nodes
        interference = cpu_use.interference()
    shared = lock is not None and lock.shared
    seen = {"interference": interference, "machine_shared": shared, "gpu_use": monitor.gpu_use()}
    seen |= {"transport": description.transport | worker.transport}
    nodes.append(description.model_copy(update=seen))
    if lock is not None:
        lock.release()


def _completed(description: Node, result: Any, numa: list[NumaBinding]) -> Node:
    """Return a node's description with what its ranks' result adds to it."""
    more = {"energy_j": result.energy_j, "warnings": [*description.warnings, *result.warnings]}
    more |= {"numa": numa}
    return description.model_copy(update=more)


def _profile(profile: Any, worker: Any) -> Profile | None:
    """Return what rank 0's profiler recorded, with the names of all ranks' traces."""
    names = worker.gather([] if profile is None else sorted(profile.files))
    if profile is None:
        return None
    files = [f"{TRACES}/{name}" for rank in names for name in rank]
    return Profile.model_validate({"steps": profile.steps, "operators": profile.operators, "files": files})


def _report(rank: int, message: Report, state: "State | None") -> None:
    """Pass a validation to the controller, and rank 0's state as a checkpoint. Waits for all ranks."""
    import ray.train
    import torch

    metrics = {**message, "hostname": platform.node()}
    if state is None or rank != 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / "state.pt")
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def _resume() -> "State | None":
    import ray.train
    import torch

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        # What rank 0's GPU held goes to this rank's GPU from the host's memory, not through rank 0's.
        return torch.load(Path(folder) / "state.pt", map_location="cpu", weights_only=True)


def _gathered(nodes: list[Node], worker: Any) -> list[Node]:
    """Return the nodes of all ranks, in the ranks' order."""
    plain = [node.model_dump(mode="json") for node in nodes]
    return [Node.model_validate(node) for rank in worker.gather(plain) for node in rank]

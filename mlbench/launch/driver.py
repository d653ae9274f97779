"""From an experiment to workers that train: the only place that starts Ray Train.

The driver calls `fit`; Ray runs `on_worker` on every worker; what rank 0 returns is what `fit` returns.
Validations travel through `ray.train.report` to the controller, which runs on the driver's machine and
appends them to the event log. Nothing else leaves a worker while the clock runs.
"""

import logging
import os
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlbench.clusters.connection import Connection
from mlbench.clusters.monitor import NodeMonitor
from mlbench.experiment import clock, events
from mlbench.experiment.config import Experiment
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Node, WorkerResult
from mlbench.launch.failures import name_missing_rank, root_cause
from mlbench.launch.heartbeat import HeartbeatClient
from mlbench.tasks import registry
from mlbench.training import timer

POLL_S = 0.2  # s between two looks at the workers' signs of life


@dataclass(frozen=True)
class Assignment:
    """What every worker is told; pickled by Ray, so it holds plain values only."""

    experiment: Experiment
    seed: int
    threads: int
    progress: tuple[str, int]
    token: str


def fit(assignment: Assignment, connection: Connection, folder: Path) -> WorkerResult:
    """Train and return what rank 0 returned; raise UserError or WorkersFailed in one sentence.

    Call it from the main thread: there a signal ends the wait for Ray.
    """
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

    from mlbench.launch.ray_hooks import EventLogCallback, LeanTorchTrainer, ProcessGroupConfig

    experiment = assignment.experiment
    logging.getLogger("ray").setLevel(logging.INFO if experiment.verbose else logging.ERROR)
    trainer = LeanTorchTrainer(
        on_worker,
        train_loop_config={"assignment": assignment},
        torch_config=ProcessGroupConfig(
            backend=experiment.backend.name,
            timeout_s=experiment.backend.timeout_s,
            module=experiment.backend.module,
            interface=experiment.backend.interface,
        ),
        scaling_config=ScalingConfig(
            num_workers=experiment.workers,
            use_gpu="GPU" in connection.resources,
            resources_per_worker=connection.resources,
            placement_strategy=connection.placement,
        ),
        run_config=RunConfig(
            name=folder.name,
            storage_path=str(folder.parent.absolute() / "ray"),
            # A run that loses a node is void unless the user allowed restarts, and then they are counted.
            failure_config=FailureConfig(
                max_failures=experiment.max_failures,
                max_preemption_failures=0,
                controller_failure_limit=experiment.max_failures,
            ),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            callbacks=[EventLogCallback(folder / events.NAME)],
        ),
    )
    try:
        returned = trainer.fit().return_value
    except KeyboardInterrupt:
        trainer.stop()
        raise
    except Exception as error:
        raise root_cause(error) from error
    assert isinstance(returned, WorkerResult)
    return returned


def on_worker(told: dict[str, Any]) -> WorkerResult:
    """Run the task on this worker; every rank returns, Ray keeps rank 0's value."""
    from mlbench.datasets import arrow

    entered = clock.wall()
    assignment: Assignment = told["assignment"]
    experiment = assignment.experiment
    worker = _worker(assignment)
    task = registry.load(experiment.task.name)
    # Every rank looks, so that all end alike: nobody waits for hours while rank 0 downloads on a paid node.
    registry.require_data(experiment.task, experiment.scale, experiment.data_root)
    if worker.local_rank == 0:
        task.prepare(experiment.task, experiment.data_root)
    worker.barrier()
    try:
        monitored = worker.local_rank == 0
        with NodeMonitor(node=_node(worker.world_size)) if monitored else nullcontext() as monitor:
            if monitor:
                worker.drain_node_metrics = monitor.drain
            result = registry.run(experiment.task, worker)
    except UserError:
        raise
    except Exception as error:
        raise name_missing_rank(error, worker) from error
    folder = task.prepare(experiment.task, experiment.data_root)
    data_hash = arrow.manifest_hash(folder) if (folder / arrow.MANIFEST).exists() else None
    return _result(result, worker, entered=entered, threads=assignment.threads, data_hash=data_hash)


def _node(world_size: int) -> str | None:
    """Return this node's name in the system metrics; None where the run has one node."""
    import ray.train

    context = ray.train.get_context()
    return None if context.get_local_world_size() == world_size else f"node_{context.get_node_rank()}"


def _worker(assignment: Assignment) -> Any:
    """Build this process's Worker from Ray's context and the process group that Ray has set up."""
    import ray.train
    import torch

    from mlbench.training import precision
    from mlbench.training.worker import Worker, control_group

    experiment = assignment.experiment
    precision.without_tf32()
    torch.set_num_threads(assignment.threads)
    os.environ["OMP_NUM_THREADS"] = str(assignment.threads)  # Ray said 1; loaders inherit this
    context = ray.train.get_context()
    rank = context.get_world_rank()
    device = torch.device("cpu")
    if experiment.backend.device == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    world_size = context.get_world_size()
    return Worker(
        rank=rank,
        world_size=world_size,
        local_rank=context.get_local_rank(),
        device=device,
        seed=assignment.seed,
        data_root=experiment.data_root,
        sync=experiment.sync,
        timer=timer.PhaseTimer(str(device), enabled=experiment.phase_timing),
        goal=experiment.target,
        report_validation=partial(_report, rank),
        heartbeat=HeartbeatClient(assignment.progress, token=assignment.token, rank=rank),
        keep_checkpoints=experiment.max_failures > 0,
        resume=_resume(),
        control=control_group(experiment.backend.timeout_s) if world_size > 1 else None,
    )


def _report(rank: int, message: dict[str, Any], state: dict[str, Any] | None) -> None:
    """Pass a validation to the controller, and rank 0's state as a checkpoint; waits for all ranks."""
    import ray.train
    import torch

    if state is None or rank != 0:
        ray.train.report(message)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / "state.pt")
        ray.train.report(message, checkpoint=ray.train.Checkpoint.from_directory(folder))


def _resume() -> dict[str, Any] | None:
    import ray.train
    import torch

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        return torch.load(Path(folder) / "state.pt", weights_only=True)


def _result(
    outcome: Any, worker: Any, *, entered: float, threads: int, data_hash: str | None
) -> WorkerResult:
    """Return what the log does not hold; describes and calibrates every node, as the clock has stopped."""
    import ray

    from mlbench.clusters import calibrate
    from mlbench.experiment import provenance
    from mlbench.launch.ray_hooks import startup_stamps

    node = None
    if worker.local_rank == 0:
        node = provenance.node() | {"threads_per_worker": threads}
        node["ray_node_id"] = ray.get_runtime_context().get_node_id()
        usable: Any = node["usable_cpus"]
        node["calibration"] = calibrate.calibrate(usable, clock=clock.monotonic)
    worker.barrier()
    return WorkerResult(
        status=outcome.status,
        error=outcome.error,
        sample_unit=outcome.unit,
        flops_per_sample=outcome.flops_per_sample,
        gradient_bytes=outcome.gradient_bytes,
        data_hash=data_hash,
        table=outcome.table,
        nodes=[Node.model_validate(description) for description in worker.gather(node) if description],
        started_at=worker.timer.started_at,
        entered=entered,
        stamps=startup_stamps(),
    )

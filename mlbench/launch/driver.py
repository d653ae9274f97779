"""From an experiment to workers that train: the only place that starts Ray Train.

Ray runs `train_loop_per_worker` on every worker. All that they report travels through `ray.train.report` to
the controller, which runs on the driver's machine and appends it to the event log; nothing else leaves a
worker while the clock runs.
"""

import logging
import shutil
from pathlib import Path

from mlbench.clusters.connection import Connection
from mlbench.config.plugins import TORCH
from mlbench.launch.failures import root_cause
from mlbench.launch.process_group import environment
from mlbench.launch.worker_process import WorkerSpec, train_loop_per_worker
from mlbench.record import events

CONTROL = "gloo"  # of torch's process group where another framework sends the gradients itself


def run_workers(spec: WorkerSpec, connection: Connection, folder: Path) -> None:
    """Train until the workers end; raise UserError or WorkersFailed in one sentence if they fail.

    Call it from the main thread: there a signal ends the wait for Ray.
    """
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

    from mlbench.launch.ray_hooks import EventLogCallback, ProcessGroupConfig
    from mlbench.launch.ray_train_private import LeanTrainer

    experiment, backend = spec.experiment, spec.experiment.backend
    torchs = experiment.framework == TORCH
    logging.getLogger("ray").setLevel(logging.INFO if experiment.verbose else logging.ERROR)
    trainer = LeanTrainer(
        train_loop_per_worker,
        train_loop_config={"spec": spec},
        backend_config=ProcessGroupConfig(
            backend=backend.name if torchs else CONTROL,
            timeout_s=backend.timeout_s,
            module=backend.module,
            interface=connection.interface or backend.interface,
            sockets=backend.sockets if backend.name == "gloo" else None,
            variables=environment(backend),
            log=str((folder / events.NAME).absolute()),
            epoch=spec.epoch,
        ),
        scaling_config=ScalingConfig(
            num_workers=experiment.workers,
            use_gpu="GPU" in connection.resources,
            resources_per_worker=connection.resources,
            placement_strategy=connection.placement,
            label_selector=connection.label_selector,
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
        trainer.fit()
    except KeyboardInterrupt:
        if connection.lost() is None:  # else nobody is left to be told
            trainer.stop()
        raise
    except Exception as error:
        starts = [event for event in events.read(folder / events.NAME) if event["key"] == "startup"]
        logs = starts[-1]["metadata"].get("logs", []) if starts else []
        raise root_cause(error, [_kept_log(log, rank, folder) for rank, log in enumerate(logs)]) from error


def _kept_log(log: str, rank: int, folder: Path) -> str:
    """Return where a rank's log, given as "PATH on HOST", can be read after the run.

    Ray's files go with the run's Ray, so a log that is on this machine is copied beside the event log.
    """
    copy = folder / f"rank_{rank}.log"
    try:
        shutil.copyfile(log.partition(" on ")[0], copy)
    except OSError:  # it is on another machine, or the disk is full
        return log
    return str(copy)

"""What runs inside Ray Train's own processes: stamps of the start-up, and the writer of validations."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.train import UserCallback
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

from mlbench.experiment import clock, events

STAMPS = ("backend_begin", "imports_end", "group_end")


# Ray Train's helpers that only cost us: an actor that asks the dashboard every second whether the controller
# lives, and at the end waits 12 s for an answer (Ray removes our placement group itself when the driver
# goes); and an actor for Ray Data, which we do not use. Each is a process of 1 CPU second.
UNUSED_CALLBACKS = ("PlacementGroupCleanerCallback", "DatasetsCallback")


class NoAutoscalingPolicy(FixedScalingPolicy):
    """Ray's policy of a fixed number of workers that does not ask an autoscaler for them.

    Ray's own starts one more actor, waits for it before it starts a worker, and asks it while they train. A
    run begins on a cluster that has room (mlbench/clusters/placement.py), so nothing has to grow.
    """

    def after_controller_start(self, train_run_context: Any) -> None:
        """Ask for nothing."""

    def _maybe_send_resource_request(self) -> None:
        pass


class LeanTorchTrainer(TorchTrainer):
    """Ray's TorchTrainer that leaves signals alone, without the helpers that mlbench has no use for."""

    controller: Any = None

    def stop(self) -> None:
        """End the controller, and with it its workers."""
        if self.controller is not None:
            ray.kill(self.controller)

    def _initialize_and_run_controller(self, **given: Any) -> Any:
        given["scaling_policy"] = NoAutoscalingPolicy(self.scaling_config)
        return super()._initialize_and_run_controller(**given)

    def _register_sigint_handler(self, controller: Any) -> None:
        """Keep what Ray would end on Ctrl-C; mlbench.launch.signals also listens to SIGTERM."""
        self.controller = controller

    def _create_default_callbacks(self) -> list[Any]:
        created = super()._create_default_callbacks()
        return [callback for callback in created if type(callback).__name__ not in UNUSED_CALLBACKS]


@dataclass
class TimedTorchConfig(TorchConfig):
    """Ray's set-up of the process group, with the time of its parts kept on every worker."""

    @property
    def backend_cls(self) -> type:
        """Return Ray's own backend, wrapped."""
        return type("TimedTorchBackend", (super().backend_cls,), {"on_start": _on_start})


def _on_start(self: Any, worker_group: Any, backend_config: TorchConfig) -> None:
    begin = clock.wall()
    worker_group.execute(_import)
    imported = clock.wall()
    TorchConfig().backend_cls.on_start(self, worker_group, backend_config)
    worker_group.execute(_stamp, begin, imported, clock.wall())


def _import() -> None:
    import torch.distributed  # noqa: F401  (the import is the point)


def _stamp(*stamps: float) -> None:
    for name, stamp in zip(STAMPS, stamps, strict=True):
        os.environ[f"MLBENCH_{name.upper()}"] = repr(stamp)


def startup_stamps() -> dict[str, float]:
    """Return the wall-clock stamps that the set-up left in this worker's environment."""
    return {name: float(os.environ[f"MLBENCH_{name.upper()}"]) for name in STAMPS}


class EventLogCallback(UserCallback):
    """Appends validations and restarts to the event log; lives in the controller, beside the driver."""

    def __init__(self, path: Path) -> None:
        self.path = str(path.absolute())
        self.restarts = 0
        self.started = False

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Write each validation with every rank's segment, and the nodes' samples."""
        ranks = sorted(metrics, key=lambda m: m["rank"])
        path = Path(self.path)
        started_at = ranks[0]["started_at"]
        system = [sample for message in ranks for sample in message["system"]]
        if not self.started:
            self.started = True
            events.append(path, "run_start", started_at, kind="INTERVAL_START")
        for parts in zip(*(message["parts"] for message in ranks), strict=True):
            segments = [part["segment"] for part in parts]
            events.append(
                path,
                "validation",
                parts[0]["validation"],
                started_at=started_at,
                segments=segments,
                system=system,
            )
            system = []

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Write which ranks failed; Ray decides whether the run goes on."""
        self.restarts += 1
        failures = {str(rank): str(error)[-2000:] for rank, error in worker_exceptions.items()}
        events.append(Path(self.path), "worker_failure", failures, count=self.restarts)

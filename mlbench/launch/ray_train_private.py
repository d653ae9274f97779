"""Private names of Ray Train 2.60 that mlbench uses. tests/launch/test_ray_train_private.py covers each."""

from typing import Any

import ray
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

# Ray Train's helpers that only cost time. One is an actor that checks every second, through the dashboard,
# whether the controller lives, and at the end waits 12 s for an answer. Ray removes our placement group
# itself when the driver goes. The other is an actor for Ray Data, which we do not use. Each is a process of 1
# CPU second.
UNUSED_CALLBACKS = ("PlacementGroupCleanerCallback", "DatasetsCallback")


class NoAutoscalingPolicy(FixedScalingPolicy):
    """Ray's policy of a fixed number of workers, without requests to an autoscaler.

    The policy of Ray starts one more actor, waits for it before it starts a worker, and queries it during the
    training. A run begins on a cluster that has room (mlbench/clusters/placement.py), so nothing has to grow.
    """

    def after_controller_start(self, train_run_context: Any) -> None:
        """Request nothing."""

    def _maybe_send_resource_request(self) -> None:
        pass


class LeanTrainer(DataParallelTrainer):
    """Ray's trainer that leaves signals alone, without the helpers that mlbench has no use for.

    Not TorchTrainer: driver and controller would import torch, and only workers need it.
    """

    controller: Any = None

    def stop(self) -> None:
        """End the controller, and with it its workers."""
        if self.controller is not None:
            ray.kill(self.controller)

    def _initialize_and_run_controller(self, **arguments: Any) -> Any:
        arguments["scaling_policy"] = NoAutoscalingPolicy(self.scaling_config)
        return super()._initialize_and_run_controller(**arguments)

    def _register_sigint_handler(self, controller: Any) -> None:
        """Keep what Ray would end on Ctrl-C. mlbench.launch.signals also listens to SIGTERM."""
        self.controller = controller

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()
        return [callback for callback in callbacks if type(callback).__name__ not in UNUSED_CALLBACKS]

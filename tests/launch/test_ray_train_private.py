"""Private names of Ray Train that a new release may take away; other tests run what uses them."""

import inspect

import pytest
import ray
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from mlbench.launch import ray_train_private


@pytest.mark.parametrize(
    ("base", "override", "use"),
    [
        (DataParallelTrainer, "_initialize_and_run_controller", "the policy without an autoscaler"),
        (DataParallelTrainer, "_register_sigint_handler", "Ctrl-C ends in a record"),
        (DataParallelTrainer, "_create_default_callbacks", "no actor that waits 12 s at the end"),
        (FixedScalingPolicy, "after_controller_start", "no actor that asks an autoscaler"),
        (FixedScalingPolicy, "_maybe_send_resource_request", "no actor that asks an autoscaler"),
    ],
)
def test_a_method_that_is_overridden_exists(base: type, override: str, use: str) -> None:
    assert callable(getattr(base, override, None)), f"Ray {ray.__version__} breaks: {use}"


def test_ray_still_has_the_callbacks_that_are_left_out_and_hands_over_the_policy_that_is_replaced() -> None:
    source = inspect.getsource(DataParallelTrainer)
    for name in ray_train_private.UNUSED_CALLBACKS:
        assert name in source, f"Ray {ray.__version__} no longer makes {name}: take it from UNUSED_CALLBACKS"
    assert "scaling_policy=" in source

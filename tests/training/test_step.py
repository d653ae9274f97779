"""What one step and one validation of the loop count, worked out by hand."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import nn

from mlbench.config.goal import Goal
from mlbench.training.loop import train
from mlbench.training.setup import TaskResult, TrainingSetup
from mlbench.training.sync import strategy
from mlbench.training.timer import PhaseTimer
from mlbench.training.worker import Worker

# Two steps of three micro-batches each; a micro-batch's loss is the sum of its numbers.
STEPS = [[[1.0], [2.0, 3.0], [4.0]], [[5.0], [6.0], [7.0, 8.0, 9.0]]]


class Scale(nn.Module):
    """One weight, that never changes as the rate is 0; remembers in which mode it was used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.modes: list[bool] = []

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        self.modes.append(self.training)
        return self.weight * numbers.sum()


def run(worker: Worker, *, report_s: float = 0.0, **changes: Any) -> tuple[Scale, TaskResult]:
    model = Scale()

    def validate(net: nn.Module, _: Any) -> dict[str, float]:
        return {"score": net(torch.zeros(1)).item()}

    values: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.0),
        "epochs": 2,
        "steps": lambda _, __: [[torch.tensor(part) for part in step] for step in STEPS],
        "forward": lambda net, numbers: net(numbers),
        "loss": lambda output, _: output,
        "validate": validate,
        "samples": len,
        "flops_per_sample": lambda _: 7.0,
        "validate_at": (0.5, 1.0),
    }
    return model, train(TrainingSetup(**values | changes), worker, report_s=report_s)


def test_every_micro_batch_is_counted_and_the_mode_comes_back_after_a_validation() -> None:
    worker = Worker()
    model, result = run(worker)
    # An epoch: a step's three micro-batches, a validation, and again.
    assert model.modes == [True, True, True, False] * 4
    # 1 + 2 + 3 + 4 and 5 + 6 + 7 + 8 + 9, each the loss of one step since the last validation.
    assert [each["train_loss"] for each in result.validations] == [10.0, 35.0, 10.0, 35.0]
    assert [times.steps for times in result.phase_times] == [1, 1, 1, 1]
    assert [times.samples for times in result.phase_times] == [4, 5, 4, 5]
    assert (result.steps, result.flops_per_sample, result.gradient_bytes) == (4, 7.0, 4)


def test_a_validation_says_whether_it_reached_the_goal() -> None:
    scores = iter([0.25, 0.75])
    worker = Worker(goal=Goal("score", 0.5, "max"))
    _, result = run(worker, validate=lambda *_: {"score": next(scores)})
    assert result.status == "goal_reached"
    assert [each["goal_reached"] for each in result.validations] == [False, True]
    assert result.time_to_accuracy == result.validations[-1]["elapsed"] > result.validations[0]["elapsed"]


def launches(worker: Worker) -> tuple[int, list[int | None]]:
    counted = []
    launched = worker.timer.bucket_launched
    worker.timer.bucket_launched = lambda: counted.append(1) or launched()
    _, result = run(worker)
    return len(counted), [times.bytes_sent for times in result.phase_times]


def test_gradients_are_communicated_once_a_step_and_each_validation_has_its_own_bytes() -> None:
    """The model has one bucket, so four steps of three micro-batches launch four.

    In each a rank sends 2 (k - 1) / k of one float32 (Patarasuk and Yuan 2009): 4 bytes a validation.
    """
    assert run_ranks(launches, 2) == [(4, [4, 4, 4, 4])] * 2


def test_a_report_sends_each_validation_once_with_what_was_measured_up_to_it() -> None:
    """Validations closer together than two reports may be share one; the last report has what is left."""
    sent: list[Any] = []
    clock = itertools.count(1_000_000)  # s; each look at it takes one
    timer = PhaseTimer(now=lambda: float(next(clock)), wall_now=lambda: 0.0, clock_id="here")
    worker = Worker(timer=timer, report_validation=lambda message, _: sent.append(copy.deepcopy(message)))
    _, result = run(worker, report_s=math.inf)
    (only,) = [message for message in sent if message["parts"]]
    assert [part["validation"] for part in only["parts"]] == result.validations
    times = [part["phase_times"] for part in only["parts"]]
    assert [each["samples"] for each in times] == [4, 5, 4, 5] and [each["steps"] for each in times] == [
        1
    ] * 4
    assert [each["stamped_steps"] for each in times] == [1] * 4
    assert [sum(each["step_s"].values()) for each in times] == [1] * 4
    assert times == [each.plain() for each in result.phase_times]
    # Steps and what is outside of them are all the time up to each validation.
    spent = [each["seconds"] + sum(each["outside"].values()) for each in times]
    elapsed = [part["validation"]["elapsed"] for part in only["parts"]]
    for until, begun, seconds in zip(elapsed, [0.0, *elapsed], spent, strict=False):
        assert seconds == pytest.approx(until - begun, abs=8), "looks at the clock between the two"
    sent.clear()
    run(Worker(report_validation=lambda message, _: sent.append(copy.deepcopy(message))), report_s=0.0)
    assert [[part["validation"]["step"] for part in message["parts"]] for message in sent] == [
        [1], [2], [3], [4], [],
    ]  # fmt: skip


def infinite_at_the_end(worker: Worker) -> str:
    """An infinite summand has no gradient, so nothing but its own loss tells rank 1 that it diverged."""
    seen = []

    def loss(output: torch.Tensor, _: Any) -> torch.Tensor:
        seen.append(1)
        return output + (math.inf if worker.rank == 1 and len(seen) == 6 else 0.0)

    return run(worker, loss=loss, epochs=1, validate_at=(1.0,))[1].status


def test_ranks_agree_that_one_diverged_in_its_last_step() -> None:
    assert run_ranks(infinite_at_the_end, 2) == ["diverged", "diverged"]


def is_bare(worker: Worker) -> bool:
    model = Scale()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return strategy.synchronise(model, optimizer, worker).module is model


def test_a_single_worker_trains_the_bare_model_also_in_a_process_group() -> None:
    """The base of every speed-up carries no cost of distribution."""
    assert run_ranks(is_bare, 1) == [True]
    assert run_ranks(is_bare, 2) == [False, False]


@pytest.mark.parametrize(("wall", "spent"), [(600.0, 600.0), (-50.0, 40.0)])
def test_where_no_host_is_left_the_wall_clock_tells_what_a_restart_took(wall: float, spent: float) -> None:
    """But never less than the checkpoint had seen: somebody may have set the clock back."""
    states: list[dict[str, Any]] = []

    def keep(_: Any, state: dict[str, Any] | None) -> None:
        states.extend([state] if state else [])

    run(Worker(keep_checkpoints=True, report_validation=keep))
    saved = {**states[1], "elapsed": 40.0}
    assert saved["epoch"] == 1 and len(saved["clocks"]) == 1
    timer = PhaseTimer(clock_id="another host", wall_now=lambda: saved["started_at"] + wall)
    _, result = run(Worker(timer=timer, resume=saved))
    assert spent < result.validations[-1]["elapsed"] < spent + 30

"""Two steps of a task under a sync strategy, or with plain averages that are written out here."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from mlbench.config.compose import compose
from mlbench.contract.ranks import mini_worker
from mlbench.tasks import registry
from mlbench.tasks.steps import EpochSteps
from mlbench.training import loop
from mlbench.training.setup import Steps, TrainingSetup
from mlbench.training.sync import strategy
from mlbench.training.sync.wire import float_buffers
from mlbench.training.worker import Worker

STEPS = 2
# Adam's step is the gradient over its size, which makes a step of rounding if the gradient is 0. With this
# eps, the errors of a step are at most lr / eps times those of the gradient.
EPS = 1e-2
# What is averaged: gradients before every step, weights after every step, or weights before the validation.
Quantity = Literal["gradients", "weights", "last weights"]
ALONE = "workers=1"


@dataclass(frozen=True)
class Result:
    """Weights and buffers by name, at first and as the validation after each step sees them."""

    tensors: list[dict[str, torch.Tensor]]
    metrics: dict[str, float]


class Averages(strategy.BareModel):
    """A bare model and the plainest average, of each tensor by itself."""

    def __init__(self, module: nn.Module, quantity: Quantity) -> None:
        super().__init__(module)
        self.quantity, self.own = quantity, []

    def after_step(self, step: int) -> None:
        if self.quantity == "weights":
            average(self.module.parameters())

    def before_validation(self) -> None:
        average(float_buffers(self.module))
        if self.quantity == "last weights":
            self.own = [weight.clone() for weight in self.module.parameters()]
            average(self.module.parameters())

    def after_validation(self) -> None:
        for weight, own in zip(self.module.parameters(), self.own, strict=False):
            weight.copy_(own)


def average(tensors: Iterable[torch.Tensor]) -> None:
    """Replace every tensor by its mean over the workers."""
    with torch.no_grad():
        for tensor in tensors:
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()


def steps(
    worker: Worker, task: str, overrides: Sequence[str], root: Path, quantity: Quantity | None
) -> Result:
    """Take two steps of a task with the sync strategy that `overrides` name, or with averages of `quantity`.

    Only sync=fsdp, which changes the model most, runs the task's validation, after the last step. It takes
    longer than the steps do.
    """
    workers = f"workers={worker.world_size}"
    experiment = compose([f"task={task}", *overrides, "goal=none", "division=open", workers])
    worker = mini_worker(replace(worker, sync=experiment.sync), root)
    setup = registry.build(experiment.task, worker)
    seen = [tensors(setup.model)]
    for group in setup.optimizer.param_groups:
        if "eps" in group:
            group["eps"] = EPS

    def validate(model: nn.Module, data: Any) -> dict[str, float]:
        seen.append(tensors(model))
        if experiment.sync.name == "fsdp" and len(seen) > STEPS:
            return setup.validate(model, data)
        return {"loss": 1.0, experiment.task.metric: 1.0}

    changes: dict[str, Any] = {"flops_per_sample": lambda _: None, "table": lambda _: []}
    changes["steps"] = lambda data, epoch: beginning(setup.steps(data, epoch), STEPS)
    with ExitStack() as stack:
        if quantity is not None:
            stack.enter_context(
                patch.object(strategy, "synchronise", lambda model, *_: Averages(model, quantity))
            )
        if quantity == "gradients":
            changes["optimizer_step"] = lambda: averaged_step(setup)
        short = replace(setup, epochs=1, validate=validate, validate_at=(0.5, 1.0), **changes)
        result = loop.train(short, worker)
    return Result(seen, result.validations[-1]["metrics"])


def averaged_step(setup: TrainingSetup) -> None:
    """Average the gradients and make the optimizer's step."""
    weights = (weight for group in setup.optimizer.param_groups for weight in group["params"])
    average(weight.grad for weight in weights if weight.grad is not None)
    if setup.optimizer_step is not None:
        setup.optimizer_step()
    elif setup.scaler is not None:
        setup.scaler.step(setup.optimizer)
    else:
        setup.optimizer.step()


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of a model's weights and buffers as vectors, by the names that the task gave them."""
    named = (*model.named_parameters(), *model.named_buffers())
    return {
        name.replace("parametrizations.", "").removesuffix(".original"): tensor.detach().clone().flatten()
        for name, tensor in named
    }


def all_steps(
    worker: Worker, task: str, commands: Sequence[tuple[str, ...]], root: Path
) -> dict[tuple[str, ...], Result]:
    """Return the steps of a task by words, and those of plain averages by quantity.

    One worker, which half of the ranks are in turn, trains the bare model with every strategy.
    """
    results = {(quantity,): steps(worker, task, (), root, quantity) for quantity in get_args(Quantity)}
    results |= {command: steps(worker, task, command, root, None) for command in commands}
    alone = replace(worker, rank=0, world_size=1, control=None)
    for command in [command for command in commands if len(command) == 1][worker.rank :: worker.world_size]:
        results[*command, ALONE] = steps(alone, task, command, root, None)
    return results


def different(result: Result, expected: Result) -> str:
    """Return the first tensor that is not what it has to be, to rounding. Empty if all are.

    After one step: to 2^-12 of the largest change, as gradients are sums of thousands of float32 terms, and 8
    roundings of the largest weight. This difference in the weights can change the sign of an activation and
    so the gradient. So after two steps: to 2^-5 of the change, while a wrong average is a tenth and more off.
    """
    if [each.keys() for each in result.tensors] != [each.keys() for each in expected.tensors]:
        return "other names"
    first = expected.tensors[0]
    for step, share in enumerate((2.0**-12, 2.0**-5), start=1):
        for name, value in expected.tensors[step].items():
            if value.is_floating_point():
                change = (value - first[name]).abs().max().item()
                bound = share * change + 8 * 2.0**-24 * value.abs().max().item()
                error = (result.tensors[step][name] - value).abs().max().item()
                if not error <= bound:
                    return f"{name} after step {step}: off by {error:.3g}, {bound:.3g} is allowed"
            elif not torch.equal(result.tensors[step][name], value):
                return f"{name} after step {step}"
    return ""


def beginning(whole: Steps, count: int) -> EpochSteps:
    """Return the first `count` steps of an epoch, which has no fewer."""
    return EpochSteps(count, lambda: map(list, islice(whole, count)))

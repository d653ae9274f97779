"""Learning rates: a pure factor of the step number, and an optional cut when validation stalls.

The rate of a step is `base * factor(step) * cut`: `base` is what the optimizer was built with, `factor`
depends only on the step's number (from 0), and `cut` is what stalls have made so far. torch's schedulers
count their calls and its plateau overwrites the rate in place. So they neither combine nor resume at a
number. Here the loop has the number and the plateau the state.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch.optim import Optimizer

Factor = Callable[[int], float]


def warmup_epochs(workers: int) -> int:
    """Return ceil(log2 k), the epochs of warm-up of MLBench's 2020 recipe (0 for one worker)."""
    return (workers - 1).bit_length()


def linear_warmup(end: float, steps: int) -> Factor:
    """Return a factor that goes linearly from 1 at step 0 to `end` at step `steps` and on."""
    return lambda step: 1 + (end - 1) * step / steps if step < steps else end


def step_decay(decay: float, at: Sequence[int]) -> Factor:
    """Return a factor that `decay` multiplies at each of the ascending step numbers `at`."""
    return lambda step: decay ** bisect_right(at, step)


def inverse_sqrt(step: int) -> float:
    """Return 1/sqrt(t) with t counted from 1, so that step 0 has factor 1 (MLBench 2018)."""
    return 1 / math.sqrt(step + 1)


def exponential_warmup(start: float, steps: int) -> Factor:
    """Return a factor that rises from `start` at step 0 to 1 at step `steps`, by equal ratios."""
    return lambda step: start ** max(0.0, 1 - step / steps)


def late_steps(decay: float, *, total: int, start: float, every: float, times: int) -> Factor:
    """Return `step_decay` at the shares start, start + every, ... of `total` steps, `times` of them."""
    # Shares are decimal fractions: 0.4 + 0.05 * i in binary could fall a step late.
    return step_decay(decay, [math.ceil(round(total * (start + every * i), 6)) for i in range(times)])


def warmup_inverse_sqrt(steps: int) -> Factor:
    """Return a factor that rises linearly from 0 to 1 at step t = `steps`, then is sqrt(steps / t)."""
    return lambda step: step / steps if step < steps else math.sqrt(steps / step)


def warmup_cosine(warmup: int, total: int) -> Factor:
    """Return a factor that rises linearly to 1 over `warmup` steps, then falls to 0 as half a cosine.

    Update 0 has the factor 1/warmup already, so that it is not lost. 0 is reached at step `total`.
    """

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return (1 + math.cos(math.pi * min(1.0, (step - warmup) / (total - warmup)))) / 2

    return factor


def product(*factors: Factor) -> Factor:
    """Return the factors multiplied, e.g. a warm-up followed by steps."""
    return lambda step: math.prod(factor(step) for factor in factors)


@dataclass
class Plateau:
    """Multiplies the rate by `decay` when the loss did not fall in `patience` validations on end.

    The count starts again after a cut. Any lower value is an improvement. NaN never is. Validations before
    step `start` set the best value, but do not count: a rate that still rises is not cut.
    """

    decay: float
    patience: int
    start: int = 0
    best: float = math.inf
    stalls: int = 0
    cut: float = 1.0

    def observe(self, value: float, step: int) -> None:
        """Take in one validation after step number `step`."""
        if value < self.best:
            self.best, self.stalls = value, 0
        elif step >= self.start:
            self.stalls += 1
            if self.stalls == self.patience:
                self.cut, self.stalls = self.cut * self.decay, 0


class Schedule:
    """Sets the rate of every parameter group before each step.

    Every rank must give `after_validation` the same (global) metrics, or their rates part.
    """

    def __init__(self, optimizer: Optimizer, factor: Factor, *, plateau: Plateau | None = None) -> None:
        self.optimizer = optimizer
        self.factor = factor
        self.plateau = plateau
        self.bases = [float(group["lr"]) for group in optimizer.param_groups]
        self.step = 0
        self.scale: float | None = None  # what the rates are multiplied with now

    def before_step(self, step: int) -> None:
        """Set the rates of step number `step`, counted from 0 over the whole run."""
        self.step = step
        scale = self.factor(step) * (self.plateau.cut if self.plateau else 1.0)
        if scale != self.scale:
            self.scale = scale
            for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
                group["lr"] = base * scale

    def after_validation(self, metrics: Mapping[str, float]) -> None:
        """Let the plateau see the validation that followed the latest step."""
        if self.plateau:
            self.plateau.observe(metrics["loss"], self.step)

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        return {
            "bases": self.bases,
            "step": self.step,
            "plateau": asdict(self.plateau) if self.plateau else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the moment of `state_dict`. The optimizer's state may be loaded before."""
        self.bases, self.step, self.scale = list(state["bases"]), state["step"], None
        self.plateau = Plateau(**state["plateau"]) if state["plateau"] else None

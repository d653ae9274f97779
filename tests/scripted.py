"""A scripted run for the tests of what is shown while one trains: a clock, heartbeats and events."""

from functools import cache
from typing import Any

from mlbench.config import compose
from mlbench.config.experiment import Experiment

BEGUN = 1_763_000_000.0  # wall clock, s since 1970


@cache
def experiment(*overrides: str) -> Experiment:
    """Return the experiment of a command line, for resnet20 with a goal of 95 %; composed once."""
    named = {word.partition("=")[0] for word in overrides}
    return compose.compose(overrides if named & {"goal", "task", "scale"} else (*overrides, "goal=95"))


class Clock:
    """A wall clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.seconds = BEGUN

    def __call__(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


def heartbeat(epoch: float, step: int, *, loss: float = 1.5, rank: int = 0) -> Any:
    values = {"rank": rank, "epoch": epoch, "step": step, "loss": loss, "samples": 32 * step}
    return values | {"unit": "images"}


def validation(
    epoch: float,
    value: float | None,
    *,
    update: int,
    elapsed: float,
    goal_reached: bool = False,
) -> dict[str, Any]:
    """Return a line of the event log as the controller writes it; data was first touched at BEGUN + 10."""
    return {
        "key": "validation",
        "value": {
            "epoch": epoch,
            "step": update,
            "elapsed": elapsed,
            "wall": BEGUN + 10 + elapsed,
            "train_loss": 0.75,
            "metrics": {} if value is None else {"top1_accuracy": value, "loss": 0.5},
            "goal_reached": goal_reached,
        },
        "metadata": {"started_at": BEGUN + 10, "phase_times": []},
    }


def failure(count: int, **by_rank: str) -> dict[str, Any]:
    """Return the event of a failure; `rank_1="..."` is what rank 1 said last."""
    failures = {name.removeprefix("rank_"): error for name, error in by_rank.items()}
    return {"key": "worker_failure", "value": failures, "metadata": {"count": count}}

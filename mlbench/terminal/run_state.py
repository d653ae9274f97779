"""How far a running experiment is, as its driver sees it: signs of life and events in, plain values out."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from mlbench.experiment import clock, format
from mlbench.experiment.config import Experiment, TrainingConfig

RATE_WINDOW_S = 10  # s of signs that the shown batch rate is the mean of
STARTING, WAITING, TRAINING = "starting", "waiting for workers", "training"
CALIBRATING = "done; measuring the nodes"
RESTARTING = "restarting from the last checkpoint"


class Connected(Protocol):
    """What is shown of a `clusters.Connection`."""

    @property
    def threads(self) -> int: ...
    @property
    def oversubscribed(self) -> bool: ...


class Course:
    """The state of one run.

    - begun: wall clock at which the command started.
    - doing: what happens now, in words. `warnings` are what a person must know, one sentence each.
    - epoch, update, loss: where training is; loss is the mean over the ranks heard of.
    - values: (epoch, value) of the goal's metric at every validation so far.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        seed: int,
        begun: float,
        now: Callable[[], float] = clock.wall,
    ) -> None:
        task = experiment.task
        self.experiment = experiment
        self.epochs = task.epochs if isinstance(task, TrainingConfig) else None
        self.seed = seed
        self.begun = begun
        self.doing = STARTING
        self.warnings: list[str] = []
        self.threads: int | None = None
        self.epoch = 0.0
        self.update = 0
        self.values: list[tuple[float, float]] = []
        self._now = now
        self._samples_each: float | None = None  # rank 0's samples an update
        self._losses: dict[int, float] = {}
        self._seen: deque[tuple[float, int]] = deque()  # (wall, update), latest last
        self._first_sign: tuple[float, float] | None = None  # wall, epoch
        self._touched: float | None = None  # wall clock of the first touch of data, once it is known
        self._pace: float | None = None  # s an epoch, everything included, from the latest validation

    def connected(self, connection: Connected) -> None:
        """Take in what the cluster gives."""
        self.threads = connection.threads
        self.doing = WAITING
        if connection.oversubscribed:
            self.warnings.append(
                f"oversubscribed: {self.experiment.workers} worker(s) of {connection.threads} thread(s) have "
                "fewer CPUs than that; no speed-up may be taken from this run"
            )

    def sign(self, sign: dict[str, Any]) -> None:
        """Take in a worker's sign of life: how far it trained, or what else it is `doing`."""
        if "doing" in sign:
            self.doing = sign["doing"]
            return
        now = self._now()
        self.doing = TRAINING
        if sign["loss"] is not None:
            self._losses[sign["rank"]] = sign["loss"]
        if sign["rank"] != 0:
            return
        if sign["step"] < self.update:  # went back to a checkpoint
            self._seen.clear()
        self.epoch, self.update = sign["epoch"], sign["step"]
        self._touched = sign.get("started_at", self._touched)
        self._samples_each = sign["samples"] / max(1, sign["step"]) if "samples" in sign else None
        self._first_sign = self._first_sign or (now, self.epoch)
        self._see(now)

    def event(self, event: dict[str, Any]) -> None:
        """Take in a line of the event log."""
        key, value = event["key"], event["value"]
        if key == "run_start":
            self._touched = value
        elif key == "validation":
            self._validated(value, event["metadata"]["started_at"])
        elif key == "worker_failure":
            self._failed(value, event["metadata"]["count"])

    def _validated(self, value: dict[str, Any], started_at: float) -> None:
        self._touched = started_at
        if value["step"] >= self.update:  # else a later sign of life was faster
            self.epoch, self.update = value["epoch"], value["step"]
            self._see(self._now())
        self._pace = value["elapsed"] / value["epoch"] if value["epoch"] else None
        if value["train_loss"] is not None:
            self._losses = {0: value["train_loss"]}  # the mean over all workers
        metric = value["metrics"].get(self.experiment.task.metric)
        if metric is not None:
            self.values.append((value["epoch"], metric))
        diverged = not value["metrics"]
        over = value.get("goal_reached") or diverged or value["epoch"] == self.epochs
        self.doing = CALIBRATING if over else TRAINING

    def _see(self, now: float) -> None:
        self._seen.append((now, self.update))
        while now - self._seen[0][0] > RATE_WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()

    def _failed(self, failures: dict[str, str], count: int) -> None:
        allowed = self.experiment.max_failures
        left = f"restart {count} of at most {allowed}" if count <= allowed else "no restart is left"
        self.warnings += [f"{failed} ({left})" for failed in format.failures(failures)]
        self.doing = RESTARTING if count <= allowed else "ending"
        self.update = 0
        self._seen.clear()
        self._losses.clear()

    @property
    def loss(self) -> float | None:
        """The mean of the ranks' training losses since the last validation."""
        losses = list(self._losses.values())
        return math.fsum(losses) / len(losses) if losses else None

    @property
    def elapsed(self) -> float:
        """Seconds since the command."""
        return self._now() - self.begun

    @property
    def trained(self) -> float | None:
        """Seconds since the first touch of data; None until a worker has told when that was."""
        return None if self._touched is None else self._now() - self._touched

    @property
    def updates_per_s(self) -> float | None:
        """The rate over the last seconds, validations included; None before two are known."""
        if len(self._seen) < 2:
            return None
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first else None

    @property
    def samples_per_s(self) -> float | None:
        """The rate of all workers together."""
        rate = self.updates_per_s
        if rate is None or self._samples_each is None:
            return None
        return rate * self._samples_each * self.experiment.workers

    @property
    def remaining(self) -> float | None:
        """Seconds to the last epoch at the pace so far; None before there is one."""
        if self.epochs is None:
            return None
        pace = self._pace
        if pace is None and self._first_sign is not None and self._seen:
            trained = self.epoch - self._first_sign[1]
            pace = (self._seen[-1][0] - self._first_sign[0]) / trained if trained > 0 else None
        return None if pace is None else pace * max(0.0, self.epochs - self.epoch)

    @property
    def remaining_counts_validation(self) -> bool:
        """Whether `remaining` comes from a pace with validations in it."""
        return self._pace is not None

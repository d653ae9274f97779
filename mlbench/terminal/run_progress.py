"""Track the progress of a run as its driver sees it: heartbeats and events in, plain values out."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from mlbench import clock
from mlbench.config.division import task_title
from mlbench.config.experiment import Experiment, TrainingConfig
from mlbench.record import format
from mlbench.record.messages import Heartbeat, ValidationMessage

RATE_WINDOW_S = 10  # s over which the shown rates are averaged
STARTING, WAITING, TRAINING = "starting", "waiting for workers", "training"
VALIDATING, ENDING = "validating", "ending"
RESTARTING = "restarting from the last checkpoint"


class Throughput:
    """How fast rank 0 trains: over the last seconds, else up to the last validation.

    - samples_per_step: of rank 0. epoch_s: s per epoch, everything included, at the latest validation.
    """

    def __init__(self) -> None:
        self.samples_per_step: float | None = None
        self.epoch_s: float | None = None
        self._recent: deque[tuple[float, int]] = deque()  # (wall, step) since the last validation
        self._before: tuple[float, int] | None = (0.0, 0)  # elapsed and step of the last validation
        self._validated: float | None = None  # steps/s up to the last validation, by rank 0's clock
        self._counted: tuple[int, int] | None = None  # steps and samples of the last heartbeat
        self._first: tuple[float, float] | None = None  # wall and epoch of the first heartbeat

    def heartbeat(self, now: float, *, epoch: float, step: int, samples: int) -> None:
        """Take in a heartbeat in training."""
        if self._recent and step < self._recent[-1][1]:  # went back to a checkpoint
            self._recent.clear()
        if self._counted and step > self._counted[0] and samples > self._counted[1]:
            self.samples_per_step = (samples - self._counted[1]) / (step - self._counted[0])
        self._counted = step, samples
        self._first = self._first or (now, epoch)
        self._recent.append((now, step))
        while now - self._recent[0][0] > RATE_WINDOW_S and len(self._recent) > 2:
            self._recent.popleft()

    def validated(self, value: ValidationMessage, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Take the rate since the last validation as the record does, without what lies outside the steps.

        Validations may arrive in a burst, so their arrival times are not used.
        """
        self.epoch_s = value["elapsed"] / value["epoch"] if value["epoch"] else None
        self._recent.clear()
        before, self._before = self._before, (value["elapsed"], value["step"])
        outside = max((math.fsum(times["outside"].values()) for times in ranks), default=0.0)
        if before is None or value["step"] <= before[1]:
            return
        steps, seconds = value["step"] - before[1], value["elapsed"] - before[0] - outside
        self._validated = steps / seconds if seconds > 0 else None
        if samples := sum(times["samples"] for times in ranks):
            self.samples_per_step = samples / steps / len(ranks)

    def restarted(self) -> None:
        """Forget the rates of the attempt that failed."""
        self._counted = self._before = self._validated = None
        self._recent.clear()

    @property
    def steps_per_s(self) -> float | None:
        """The rate over the last seconds, else up to the last validation, or None before either is known."""
        (begin, first), (end, last) = (self._recent[0], self._recent[-1]) if self._recent else ((0, 0),) * 2
        return (last - first) / (end - begin) if end > begin else self._validated

    def estimated_epoch_s(self, epoch: float) -> float | None:
        """Return s per epoch at the latest validation, else by the heartbeats up to `epoch`."""
        if self.epoch_s is None and self._first and self._recent and epoch > self._first[1]:
            return (self._recent[-1][0] - self._first[0]) / (epoch - self._first[1])
        return self.epoch_s


class RunState:
    """The state of one run.

    - activity: what the run does now. `warnings`: one sentence each.
    - epoch, step: the progress of training, as rank 0 reports it.
    - values: (epoch, value) of the goal's metric at every validation so far.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        seed: int,
        command_started: float,
        now: Callable[[], float] = clock.wall,
    ) -> None:
        task = experiment.task
        self.experiment = experiment
        self.epochs = task.epochs if isinstance(task, TrainingConfig) else None
        self.seed = seed
        self.activity = STARTING
        self.warnings: list[str] = []
        self.threads: int | None = None
        self.epoch = 0.0
        self.step = 0
        self.unit = "samples"
        self.values: list[tuple[float, float]] = []
        self._command_started = command_started
        self._now = now
        self._losses: dict[int, float] = {}  # of the ranks that reported since the last validation
        self._throughput = Throughput()
        self._clock_start: float | None = None  # wall clock of the first access to training data

    def connected(self, threads: int, oversubscribed: bool) -> None:
        """Record the cluster's resources."""
        self.threads = threads
        self.activity = WAITING
        if oversubscribed:
            self.warnings.append(
                f"oversubscribed: {format.counted(self.experiment.workers, 'worker')} x "
                f"{format.counted(threads, 'thread')} on fewer CPUs, excluded from speed-ups"
            )

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Update a worker's progress in training, or what else it is `doing`."""
        if "doing" in heartbeat:
            self.activity = heartbeat["doing"]
            if self.activity == VALIDATING:
                self.epoch = math.ceil(self.epoch)  # the last heartbeat was sent before the epoch's end
            return
        self.activity = TRAINING
        if heartbeat["loss"] is not None:
            self._losses[heartbeat["rank"]] = heartbeat["loss"]
        if heartbeat["rank"] != 0:
            return
        self.unit = heartbeat.get("unit", self.unit)
        self._clock_start = heartbeat.get("started_at", self._clock_start)
        self.epoch, self.step, samples = heartbeat["epoch"], heartbeat["step"], heartbeat["samples"]
        self._throughput.heartbeat(self._now(), epoch=self.epoch, step=self.step, samples=samples)

    def event(self, event: dict[str, Any]) -> None:
        """Update the state from a line of the event log."""
        key, value = event["key"], event["value"]
        if key == "run_start":
            self._clock_start = value
        elif key == "validation":
            self._validated(value, event["metadata"])
        elif key == "worker_failure":
            self._failed(value, event["metadata"]["count"])

    def _validated(self, value: ValidationMessage, metadata: Mapping[str, Any]) -> None:
        self._clock_start = metadata["started_at"]
        self.unit = metadata.get("unit", self.unit)
        if value["step"] >= self.step:  # else a later heartbeat was faster
            self.epoch, self.step = value["epoch"], value["step"]
        self._throughput.validated(value, metadata["phase_times"])
        if value["train_loss"] is not None:
            self._losses = {0: value["train_loss"]}  # the mean over all workers
        metric = value["metrics"].get(self.experiment.task.metric)
        if metric is not None:
            self.values.append((value["epoch"], metric))
        over = value.get("goal_reached") or not value["metrics"] or value["epoch"] == self.epochs
        self.activity = ENDING if over else TRAINING

    def _failed(self, failures: dict[str, str], count: int) -> None:
        allowed = self.experiment.max_failures
        what = f"restart {count} of at most {allowed}" if count <= allowed else "no restart is left"
        by_rank = {int(rank): error for rank, error in failures.items()}
        self.warnings += [f"{failure} ({what})" for failure in format.failures(by_rank)]
        self.activity = RESTARTING if count <= allowed else ENDING
        self.step = 0
        self._throughput.restarted()
        self._losses.clear()

    @property
    def loss(self) -> float | None:
        """The mean of the ranks' training losses since the last validation."""
        return fmean(self._losses.values()) if self._losses else None

    @property
    def elapsed(self) -> float:
        """Seconds since the command."""
        return self._now() - self._command_started

    @property
    def trained(self) -> float | None:
        """Seconds on the run's clock, or None until a worker has reported its start."""
        return None if self._clock_start is None else self._now() - self._clock_start

    @property
    def steps_per_s(self) -> float | None:
        """The present rate, or None before it is known."""
        return self._throughput.steps_per_s

    @property
    def samples_per_s(self) -> float | None:
        """The rate of all workers together."""
        if self.steps_per_s is None or self._throughput.samples_per_step is None:
            return None
        return self.steps_per_s * self._throughput.samples_per_step * self.experiment.workers

    @property
    def remaining(self) -> float | None:
        """Seconds to the last epoch at the speed so far, or None before that is known."""
        epoch_s = self._throughput.estimated_epoch_s(self.epoch)
        return (
            None if self.epochs is None or epoch_s is None else epoch_s * max(0.0, self.epochs - self.epoch)
        )

    # The same sentences for the screen and for plain lines.

    def headline(self) -> str:
        """Return what runs, in one line."""
        experiment = self.experiment
        threads = f" x {format.counted(self.threads, 'thread')}" if self.threads else ""
        launcher = f"{experiment.launcher}, " if experiment.launcher == "torchrun" else ""
        return (
            f"{task_title(experiment.task.name, experiment.deviations)} {experiment.scale} "
            f"{experiment.division.name}, "
            f"{format.counted(experiment.workers, 'worker')}{threads}, {experiment.backend.name}, "
            f"{experiment.hardware.name}, {experiment.cluster.name}, {launcher}seed={self.seed}"
        )

    def position(self) -> str:
        """Return how many epochs are done, e.g. epoch 3.4 of 20."""
        return f"epoch {self.epoch:.1f}" + (f" of {self.epochs}" if self.epochs else "")

    def rates(self) -> list[str]:
        """Return loss and rates, as far as they are known."""
        parts = [] if self.loss is None else [f"loss {self.loss:.4g}"]
        if self.steps_per_s is not None:
            parts.append(f"{format.number(self.steps_per_s)} steps/s")
        if self.samples_per_s is not None:
            workers = format.counted(self.experiment.workers, "worker")
            parts.append(f"{format.number(self.samples_per_s)} {self.unit}/s on {workers}")
        return parts

    def goal(self) -> str:
        """Return the last validation against the goal, or "" if there is neither."""
        task, goal = self.experiment.task, self.experiment.target
        target = f"goal {format.target(goal, task.metric_unit)}" if goal else ""
        if not self.values:
            return target
        value = self.values[-1][1]
        text = format.measured(value, task.metric_unit, goal)
        return f"{text}, {target}{' reached' if goal.reached(value) else ''}" if goal else text

    def estimate(self) -> list[str]:
        """Return the time to the last epoch, if it can be estimated, but never one to the goal."""
        if self.remaining is None or self.activity not in (TRAINING, VALIDATING):
            return []
        about = f"about {format.whole(self.remaining)} to the last epoch"
        if self._throughput.epoch_s is None:
            return [f"{about}, validations not counted yet"]
        return [f"at most {about}" if self.experiment.target else about]

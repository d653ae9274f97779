"""THE timed loop. Every task that trains goes through `train`; no task reads a clock.

What is measured: `elapsed` runs from the first touch of training data and never pauses (MLPerf Training's
rule), so it covers loading, validation, checkpoints and recovery. Inside a batch the loop marks the phases
of `mlbench.training.timer`. Nothing in a batch talks to another process but the gradients' own communication
and, every CHECK_UPDATES updates, one number that tells whether the loss is still finite.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from mlbench.experiment.goal import better
from mlbench.experiment.phases import Segment
from mlbench.training.sync import ddp
from mlbench.training.worker import Worker

CHECK_UPDATES = 500  # updates between two looks at a loss that is no longer finite
REPORT_S = 2.0  # s; a report waits for all ranks and the controller (about 50 ms), so short epochs share one


class Updates(Protocol):
    """One epoch's updates of this rank; an update is the list of micro-batches it accumulates."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence[Any]]: ...


class Scaler(Protocol):
    """A dynamic loss scale that says which updates it skips (mlbench/training/precision.py)."""

    overflowed: torch.Tensor  # a bool on the device: whether the last update was skipped

    def scale(self, outputs: torch.Tensor, /) -> torch.Tensor: ...
    def step(self, optimizer: torch.optim.Optimizer, /) -> object: ...
    def update(self) -> None: ...
    def stuck(self) -> bool: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> None: ...


def _nothing(_: Any) -> None: ...


@dataclass
class Parts:
    """What a task hands to the loop. Times and communication are the loop's own affair.

    - load(): reads training and validation data, moves them to the device, sorts them: whatever looks at more
      than their numbers of rows. It comes first on the clock, also after a restart.
    - updates(epoch): this rank's updates, the same number on every rank.
    - forward(model, batch) and loss(output, batch): the loss of a micro-batch, such that the mean of the
      gradients over workers is the update's gradient (accumulated micro-batches add up).
    - validate(model): global metrics from summed counts, identical on every rank.
    - samples(batch): this rank's samples in a micro-batch, in the task's unit.
    - before_update(update): sets the learning rate of update 0, 1, ...
    - after_validation(metrics): e.g. a plateau schedule; metrics has train_loss too.
    - step(): clips and steps; the default is optimizer.step() through the scaler.
    - validate_at: fractions of an epoch after which to validate; the last is 1.
    - stateful: what a checkpoint must hold beside model and optimizer, by name.
    - autocast, scaler: mixed precision and its loss scale; None and None is full precision.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    epochs: int
    updates: Callable[[int], Updates]
    forward: Callable[[nn.Module, Any], Any]
    loss: Callable[[Any, Any], torch.Tensor]
    validate: Callable[[nn.Module], dict[str, float]]
    samples: Callable[[Any], int]
    load: Callable[[], object] = lambda: None
    before_update: Callable[[int], None] = _nothing
    after_validation: Callable[[dict[str, float]], None] = _nothing
    step: Callable[[], None] | None = None
    validate_at: tuple[float, ...] = (1.0,)
    stateful: dict[str, Any] = field(default_factory=dict)
    autocast: torch.dtype | None = None
    scaler: Scaler | None = None


@dataclass
class Outcome:
    """What a run of a task gives back, on every rank: plain values that travel as JSON."""

    status: str  # goal_reached, goal_not_reached, completed (no goal asked), diverged
    validations: list[dict[str, Any]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    time_to_accuracy: float | None = None  # s
    updates: int = 0
    elapsed: float = 0.0  # s from the first touch of data to the end of the last validation
    unit: str = "samples"  # what `samples` counts: images, rows, tokens
    flops_per_sample: float | None = None
    gradient_bytes: int | None = None  # what a worker contributes to an update's all-reduce
    error: str | None = None  # why the status is `failed`
    table: list[dict[str, Any]] = field(default_factory=list)  # of tasks that measure without training


class _Diverged(Exception):
    """The loss is no longer finite on at least one rank, or the loss scale has given up.

    Raised on every rank at the same update.
    """


def train(parts: Parts, worker: Worker) -> Outcome:
    """Train until the goal, the last epoch or divergence; return what was measured on this rank."""
    tracker = worker.tracker
    model = ddp.wrap(parts.model, worker.sync, tracker)
    run = _Run(parts, worker, model)
    first_epoch = run.restore()
    worker.barrier()
    tracker.start(started_at=worker.resume["started_at"] if worker.resume else None)
    if worker.keep_checkpoints and not worker.resume:
        run.report(epoch=0)  # a start to go back to, and the moment at which the clock began
    with tracker.outside("loading"):
        parts.load()
    status = "goal_not_reached" if worker.goal else "completed"
    epoch = first_epoch
    try:
        for epoch in range(first_epoch, parts.epochs):
            if run.epoch(epoch):
                status = "goal_reached"
                break
    except _Diverged:
        run.keep(run.validation(epoch + 1, {}))
        status = "diverged"
    run.report()
    return run.outcome(status)


class _Run:
    """The state of one call of `train`."""

    def __init__(self, parts: Parts, worker: Worker, model: nn.Module) -> None:
        self.parts, self.worker, self.model = parts, worker, model
        self.tracker = worker.tracker
        self.precision: Any = nullcontext()  # the recipe's autocast, or none; entered again in every batch
        if parts.autocast is not None:
            self.precision = torch.autocast(worker.device.type, dtype=parts.autocast)
        self.update = 0
        self.samples = 0  # of this rank since it started, for signs of life
        self.best: float | None = None
        self.validations: list[dict[str, Any]] = []
        self.segments: list[Segment] = []
        self.unreported: list[dict[str, Any]] = []
        self.reported_at = 0.0  # on rank 0's clock, so that all ranks decide alike
        self.loss_sum = torch.zeros((), device=worker.device)
        self.loss_count = 0
        self.left_out = torch.zeros((), device=worker.device)  # updates whose loss is not in the sum

    def epoch(self, epoch: int) -> bool:
        """Train and validate one epoch; return whether the goal was reached."""
        updates = self.parts.updates(epoch)
        count = len(updates)
        stops = {max(1, math.ceil(part * count)): part for part in self.parts.validate_at}
        self.model.train()
        self.tracker.resume()
        for done, micro_batches in enumerate(updates, start=1):
            self.tracker.mark("data_wait")
            self.train_update(micro_batches, epoch + done / count)
            if done in stops:
                if self.validate(epoch + stops[done], last=done == count):
                    return True
                self.model.train()
                self.tracker.resume()
        return False

    def train_update(self, micro_batches: Sequence[Any], position: float) -> None:
        """Run forward, backward and the optimizer's step over one update's micro-batches."""
        parts, tracker, scaler = self.parts, self.tracker, self.parts.scaler
        parts.before_update(self.update)
        before = None if scaler is None else self.loss_sum.clone()
        samples = 0
        for batch in micro_batches[:-1]:
            with ddp.without_sync(self.model):
                samples += self.accumulate(batch)
        samples += self.accumulate(micro_batches[-1])
        if parts.step is not None:
            parts.step()
        elif scaler is not None:
            scaler.step(parts.optimizer)
        else:
            parts.optimizer.step()
        if scaler is not None and before is not None:
            scaler.update()
            self.leave_out_overflow(scaler, before)
        parts.optimizer.zero_grad()
        tracker.mark("optimizer")
        self.update += 1
        self.samples += samples
        self.loss_count += 1
        if self.update % CHECK_UPDATES == 0:
            self.stop_if_diverged()
        if tracker.due():
            self.worker.progress(
                {
                    "epoch": position,
                    "update": self.update,
                    "loss": self.mean_loss(),
                    "samples": self.samples,
                    "started_at": tracker.started_at,
                }
            )
        tracker.end_batch(samples)

    def accumulate(self, batch: Any) -> int:
        """Run forward and backward over one micro-batch; return its samples."""
        parts, mark = self.parts, self.tracker.mark
        with self.precision:
            output = parts.forward(self.model, batch)
            mark("forward")
            loss = parts.loss(output, batch)
            mark("loss")
        (loss if parts.scaler is None else parts.scaler.scale(loss)).backward()
        mark("backward")
        self.loss_sum += loss.detach()
        return parts.samples(batch)

    def leave_out_overflow(self, scaler: Scaler, before: torch.Tensor) -> None:
        """Take back a loss that is not finite if its update was skipped; does not wait for the device.

        Half precision overflows now and then, and the scale's rule mends it: no sign of divergence.
        """
        lost = scaler.overflowed & ~self.loss_sum.isfinite()
        self.loss_sum = torch.where(lost, before, self.loss_sum)
        self.left_out += lost

    def mean_loss(self) -> float:
        """Return this rank's mean loss since the last validation; waits for the device."""
        return self.loss_sum.item() / max(1.0, self.loss_count - self.left_out.item())

    def stop_if_diverged(self) -> None:
        """Raise on all ranks alike if the loss of one is not finite, or its loss scale is stuck."""
        scaler = self.parts.scaler
        loss = math.inf if scaler is not None and scaler.stuck() else self.loss_sum.item()
        if not math.isfinite(self.worker.sum([loss]).item()):
            raise _Diverged

    def validate(self, position: float, *, last: bool) -> bool:
        """Validate on all workers and report; return whether the goal was reached."""
        tracker, parts = self.tracker, self.parts
        self.stop_if_diverged()
        if self.worker.rank == 0:
            self.worker.progress({"doing": "validating"})
        with tracker.outside("validation"):
            self.model.eval()
            plain = ddp.unwrap(self.model)
            with torch.no_grad():
                ddp.average_buffers(plain)
                metrics = parts.validate(plain)
        validation = self.validation(position, metrics)
        reached = False
        goal = self.worker.goal
        if goal is not None:
            value = metrics[goal.metric]
            reached = goal.reached(value)
            if better(value, self.best, goal.direction):
                self.best = value
        validation["goal_reached"] = reached
        self.keep(validation)
        parts.after_validation({**metrics, "train_loss": validation["train_loss"]})
        if not all(map(math.isfinite, metrics.values())):
            raise _Diverged
        if not reached and validation["elapsed"] - self.reported_at >= REPORT_S:
            self.report(epoch=round(position) if last else None)
        return reached

    def validation(self, position: float, metrics: dict[str, float]) -> dict[str, Any]:
        """Return a validation's record; its time is taken first, before any further communication."""
        elapsed = self.tracker.elapsed()
        first = elapsed if self.worker.rank == 0 else 0.0
        counted = self.loss_count - self.left_out.item()
        loss, count, elapsed = self.worker.sum([self.loss_sum.item(), counted, first]).tolist()
        self.loss_sum.zero_()
        self.left_out.zero_()
        self.loss_count = 0
        return {
            "epoch": position,
            "update": self.update,
            "elapsed": elapsed,
            "wall": self.tracker.started_at + elapsed,
            "train_loss": loss / count if count and math.isfinite(loss) else None,
            "metrics": {k: v if math.isfinite(v) else None for k, v in metrics.items()},
        }

    def keep(self, validation: dict[str, Any]) -> None:
        """Keep a validation and what was measured up to it, for the outcome and the next report."""
        segment = self.tracker.take()
        self.segments.append(segment)
        self.validations.append(validation)
        plain = {name: value for name, value in vars(segment).items() if name != "batch_s"}
        self.unreported.append({"validation": validation, "segment": plain})

    def report(self, *, epoch: int | None = None) -> None:
        """Send what was not sent yet and, where checkpoints are kept and `epoch` is complete, the state."""
        message = {
            "started_at": self.tracker.started_at,
            "rank": self.worker.rank,
            "parts": self.unreported,
            "system": self.worker.system(),
        }
        self.unreported = []
        self.reported_at = self.validations[-1]["elapsed"] if self.validations else 0.0
        with self.tracker.outside("report"):
            state = self.state(epoch) if self.worker.keep_checkpoints and epoch is not None else None
            self.worker.report(message, state)

    def state(self, epoch: int) -> dict[str, Any]:
        """Return everything a restart of any rank needs; tensors and plain values only (no pickled code)."""
        return {
            "epoch": epoch,
            "update": self.update,
            "best": self.best,
            "started_at": self.tracker.started_at,
            "validations": list(self.validations),
            "segments": self.worker.gather([vars(segment) for segment in self.segments]),
            "states": {name: part.state_dict() for name, part in self.stateful().items()},
        }

    def stateful(self) -> dict[str, Any]:
        """Return by name what has a state that a checkpoint keeps."""
        found = {"model": ddp.unwrap(self.model), "optimizer": self.parts.optimizer}
        if self.parts.scaler is not None:
            found["scaler"] = self.parts.scaler
        return found | self.parts.stateful

    def restore(self) -> int:
        """Load the checkpoint after a restart; return the epoch to go on with."""
        saved = self.worker.resume
        if saved is None:
            return 0
        for name, part in self.stateful().items():
            part.load_state_dict(saved["states"][name])
        self.update, self.best = saved["update"], saved["best"]
        self.validations = list(saved["validations"])
        self.segments = [Segment(**segment) for segment in saved["segments"][self.worker.rank]]
        return saved["epoch"]

    def outcome(self, status: str) -> Outcome:
        """Return what was measured; the last report's own cost belongs to no segment."""
        elapsed = self.validations[-1]["elapsed"] if self.validations else self.tracker.elapsed()
        plain = ddp.unwrap(self.model)
        return Outcome(
            status=status,
            validations=self.validations,
            segments=self.segments,
            time_to_accuracy=elapsed if status == "goal_reached" else None,
            updates=self.update,
            elapsed=elapsed,
            gradient_bytes=sum(p.numel() * p.element_size() for p in plain.parameters() if p.requires_grad),
        )

"""THE timed loop. Every task that trains goes through `train`; no task reads a clock.

What is measured: `elapsed` runs from the first touch of training data and never pauses (MLPerf Training's
rule), so it covers loading, validation, checkpoints and recovery. Inside a step the loop marks the phases
of `mlbench.training.timer`. Nothing in a step talks to another process but the gradients' own communication
and, every CHECK_EVERY steps, one number that tells whether the loss is still finite.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from mlbench.config.goal import better
from mlbench.record.messages import Report, ValidationMessage
from mlbench.record.phases import PhaseTimes
from mlbench.training import arrivals, checkpoint
from mlbench.training.clock_offset import ClockOffset
from mlbench.training.profiler import StepProfiler
from mlbench.training.setup import Scaler, TaskResult, TrainingSetup
from mlbench.training.stamps import Arrivals
from mlbench.training.sync import strategy
from mlbench.training.worker import Worker

CHECK_EVERY = 500  # steps between two looks at a loss that is no longer finite
REPORT_S = 2.0  # s; a report waits for all ranks and the controller (about 50 ms), so short epochs share one


class _Diverged(Exception):
    """The loss is no longer finite on at least one rank, or the loss scale has given up.

    Raised on every rank at the same step.
    """


def train(setup: TrainingSetup, worker: Worker, *, report_s: float = REPORT_S) -> TaskResult:
    """Train until the goal, the last epoch or divergence; return what was measured on this rank.

    report_s: seconds between two reports, at least.
    """
    try:
        run = Run(setup, worker, report_s=report_s)
        status = run.train()
        return run.result(status)
    finally:
        setup.close()


class Run:
    """The state of one call of `train`."""

    def __init__(self, setup: TrainingSetup, worker: Worker, *, report_s: float = REPORT_S) -> None:
        self.setup, self.worker, self.timer = setup, worker, worker.timer
        self.report_s = report_s
        self.sync = strategy.synchronise(setup.model, setup.optimizer, worker)
        self.model = self.sync.module
        self.autocast: torch.autocast | None = None  # entered in every batch
        if setup.autocast is not None:
            self.autocast = torch.autocast(worker.device.type, dtype=setup.autocast)
        self.weights = [weight for group in setup.optimizer.param_groups for weight in group["params"]]
        self.energy_before: dict[str, float] = {}  # J by part, when the clock started
        self.energy_j: dict[str, float] = {}  # from there to the last validation
        self.profiler: StepProfiler | None = None
        self.data: Any = None
        self.clock_offset: ClockOffset
        self.clocks: dict[str, float] = {}  # when the run started, s on the clock of each host
        self.step = 0
        self.position = 0.0  # epochs trained
        self.samples = 0  # of this rank, for heartbeats
        self.best: float | None = None
        self.validations: list[ValidationMessage] = []
        self.phase_times: list[PhaseTimes] = []
        self.unreported: list[tuple[ValidationMessage, PhaseTimes, Arrivals]] = []
        self.bytes_sent = 0  # of this rank, up to the last validation
        self.reported_at = 0.0  # on rank 0's clock, so that all ranks decide alike
        self.loss_sum = torch.zeros((), device=worker.device)
        self.losses: list[torch.Tensor] = []  # of micro-batches, not in the sum yet: one addition for all
        self.loss_count = 0
        self.skipped_steps = torch.zeros((), device=worker.device)  # whose loss is not in the sum

    def train(self) -> str:
        """Train from the start or the last checkpoint; return the status."""
        worker, timer = self.worker, self.timer
        first_epoch = checkpoint.restore(self)
        self.bytes_sent = self.sync.bytes_sent(self.step)
        self.clock_offset = ClockOffset(worker)
        worker.barrier()
        self.energy_before = worker.read_energy()
        self.clocks = checkpoint.start_clock(self)
        if worker.keep_checkpoints and not worker.resume:
            with timer.outside_steps("report"):
                self.report(epoch=0)  # a start to go back to, and the moment at which the clock began
        with timer.outside_steps("loading"):
            self.data = self.setup.load()
        if worker.profile_steps:
            cuda = worker.device.type == "cuda"
            self.profiler = StepProfiler(worker.profile_steps, rank=worker.rank, cuda=cuda)
        status = "goal_not_reached" if worker.goal else "completed"
        try:
            for epoch in range(first_epoch, self.setup.epochs):
                if self.train_epoch(epoch):
                    status = "goal_reached"
                    break
        except _Diverged:
            status = "diverged"
            if not self.validations or self.validations[-1]["step"] != self.step:
                self.complete(self.record_validation(self.position, {}))
        with timer.outside_steps("report"):
            self.report()
        return status

    def train_epoch(self, epoch: int) -> bool:
        """Train and validate one epoch; return whether the goal was reached."""
        steps = self.setup.steps(self.data, epoch)
        count = len(steps)
        stops = {max(1, math.ceil(part * count)) for part in self.setup.validate_at}
        self.model.train()
        for done, micro_batches in enumerate(steps, start=1):
            self.timer.end_phase("data_wait")
            self.position = epoch + done / count
            self.train_step(micro_batches)
            if self.profiler is not None:
                self.profiler.step()
            if done in stops:
                if self.validate(self.position, last=done == count):
                    return True
                self.model.train()
        return False

    def train_step(self, micro_batches: Sequence[Any]) -> None:
        """Run forward, backward and the optimizer's step over one step's micro-batches."""
        setup, timer, scaler = self.setup, self.timer, self.setup.scaler
        setup.before_step(self.step)
        samples = 0
        for batch in micro_batches[:-1]:
            with self.sync.accumulating():
                samples += self.accumulate(batch)
        samples += self.accumulate(micro_batches[-1])
        if setup.optimizer_step is not None:
            setup.optimizer_step()
        elif scaler is not None:
            scaler.step(setup.optimizer)
        else:
            setup.optimizer.step()
        if scaler is not None:
            scaler.update()
            self.skip_overflow_loss(scaler, len(micro_batches))
        for weight in self.weights:  # as zero_grad does, without its range for the profiler
            weight.grad = None
        timer.end_phase("optimizer")
        self.sync.after_step(self.step)
        if setup.after_step is not None:
            setup.after_step()
            timer.end_phase("optimizer")
        self.step += 1
        self.samples += samples
        self.loss_count += 1
        if self.step % CHECK_EVERY == 0:
            self.stop_if_diverged()
        if timer.stamping or not timer.enabled:  # of short steps one in many: looking at the clock takes time
            if timer.calibration_due():
                timer.sample(self.worker.sum([timer.median_step_s()]).item() / self.worker.world_size)
            if timer.heartbeat_due():
                self.heartbeat()
        timer.end_step(samples)

    def accumulate(self, batch: Any) -> int:
        """Run forward and backward over one micro-batch; return its samples."""
        setup, end_phase = self.setup, self.timer.end_phase
        if self.autocast is None:
            loss = self.forward(batch)
        else:
            with self.autocast:
                loss = self.forward(batch)
        (loss if setup.scaler is None else setup.scaler.scale(loss)).backward()
        end_phase("backward")
        self.losses.append(loss.detach())
        return setup.samples(batch)

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the loss of one micro-batch."""
        setup, end_phase = self.setup, self.timer.end_phase
        output = setup.forward(self.model, batch)
        end_phase("forward")
        loss = setup.loss(output, batch)
        end_phase("loss")
        return loss

    def heartbeat(self) -> None:
        """Tell where training is."""
        self.worker.heartbeat(
            {
                "rank": self.worker.rank,
                "epoch": self.position,
                "step": self.step,
                "loss": self.mean_loss(),
                "samples": self.samples,
                "unit": self.setup.sample_unit,
                "started_at": self.timer.started_at,
            }
        )

    def skip_overflow_loss(self, scaler: Scaler, micro_batches: int) -> None:
        """Take back a step's loss that is not finite if the step was skipped; does not wait for the device.

        Half precision overflows now and then, and the scale's rule mends it: no sign of divergence.
        """
        loss = torch.stack(self.losses[-micro_batches:]).sum()
        lost = scaler.overflowed & ~loss.isfinite()
        self.losses[-micro_batches:] = [torch.where(lost, 0.0, loss)]
        self.skipped_steps += lost

    def total_loss(self) -> float:
        """Return this rank's losses since the last validation, summed; waits for the device."""
        if self.losses:
            self.loss_sum += torch.stack(self.losses).sum()
            self.losses.clear()
        return self.loss_sum.item()

    def mean_loss(self) -> float:
        """Return this rank's mean loss since the last validation; waits for the device."""
        return self.total_loss() / max(1.0, self.loss_count - self.skipped_steps.item())

    def stop_if_diverged(self) -> None:
        """Raise on all ranks alike if the loss of one is not finite, or its loss scale is stuck."""
        scaler = self.setup.scaler
        loss = math.inf if scaler is not None and scaler.stuck() else self.total_loss()
        if not math.isfinite(self.worker.sum([loss]).item()):
            raise _Diverged

    def validate(self, position: float, *, last: bool) -> bool:
        """Validate on all workers and report; return whether the goal was reached."""
        timer, setup = self.timer, self.setup
        with timer.outside_steps("validation"):
            self.stop_if_diverged()
            if self.worker.rank == 0:
                self.worker.heartbeat({"doing": "validating"})
            self.model.eval()
            with torch.no_grad(), self.autocast or nullcontext(), setup.validation_weights():
                self.sync.before_validation()
                metrics = setup.validate(setup.model, self.data)
                self.sync.after_validation()
        validation = self.record_validation(position, metrics)
        with timer.outside_steps("report"):
            return self.evaluate(validation, metrics, last=last)

    def evaluate(self, validation: ValidationMessage, metrics: dict[str, float], *, last: bool) -> bool:
        """Compare with the goal, let the schedule see, and report; return whether the goal was reached."""
        setup, position = self.setup, validation["epoch"]
        self.complete(validation)
        reached = False
        goal = self.worker.goal
        if goal is not None:
            value = metrics[goal.metric]
            reached = goal.reached(value)
            if better(value, self.best, goal.direction):
                self.best = value
        validation["goal_reached"] = reached
        setup.after_validation({**metrics, "train_loss": validation["train_loss"]})
        if not all(map(math.isfinite, metrics.values())):
            raise _Diverged
        if not reached and validation["elapsed"] - self.reported_at >= self.report_s:
            self.report(epoch=round(position) if last else None)
        return reached

    def record_validation(self, position: float, metrics: dict[str, float]) -> ValidationMessage:
        """Keep a validation that ends now, and what was measured up to it; `complete` fills in the rest."""
        times, own = self.timer.pop()
        assert times.elapsed is not None
        validation: ValidationMessage = {
            "epoch": position,
            "step": self.step,
            "elapsed": times.elapsed,
            "wall": 0.0,
            "train_loss": None,
            "goal_reached": False,
            "metrics": {k: v if math.isfinite(v) else None for k, v in metrics.items()},
        }
        joules = self.worker.read_energy()
        self.energy_j = {part: joules[part] - j for part, j in self.energy_before.items() if part in joules}
        before, self.bytes_sent = self.bytes_sent, self.sync.bytes_sent(self.step)
        times.bytes_sent = self.bytes_sent - before
        self.phase_times.append(times)
        self.validations.append(validation)
        self.unreported.append((validation, times, own))
        return validation

    def complete(self, validation: ValidationMessage) -> None:
        """Add to a validation what the ranks know together: rank 0's time and the mean loss."""
        first = validation["elapsed"] if self.worker.rank == 0 else 0.0
        counted = self.loss_count - self.skipped_steps.item()
        loss, count, elapsed = self.worker.sum([self.total_loss(), counted, first]).tolist()
        self.loss_sum.zero_()
        self.skipped_steps.zero_()
        self.loss_count = 0
        validation["elapsed"] = elapsed
        validation["wall"] = self.timer.started_at + elapsed
        validation["train_loss"] = loss / count if count and math.isfinite(loss) else None

    def report(self, *, epoch: int | None = None) -> None:
        """Send what was not sent yet and, where checkpoints are kept and `epoch` is complete, the state."""
        worker = self.worker
        self.clock_offset.measure()
        arrivals.split(
            [(times, own) for _, times, own in self.unreported],
            ranks=worker.world_size,
            to_common=self.clock_offset.to_common,
            group=worker.control,
        )
        for _, times, _ in self.unreported:
            times.clock_error_s = self.clock_offset.error()
        message: Report = {
            "started_at": self.timer.started_at,
            "rank": worker.rank,
            "parts": [{"validation": v, "phase_times": times.plain()} for v, times, _ in self.unreported],
            "system": worker.drain_node_metrics(),
            "unit": self.setup.sample_unit,
        }
        self.unreported = []
        self.reported_at = self.validations[-1]["elapsed"] if self.validations else 0.0
        state = None
        if worker.keep_checkpoints and epoch is not None:
            state = checkpoint.state(self, epoch)
        worker.report_validation(message, state)

    def result(self, status: str) -> TaskResult:
        """Return what was measured; the last report's own cost belongs to no phase times."""
        setup = self.setup
        elapsed = self.validations[-1]["elapsed"] if self.validations else self.timer.elapsed()
        trained = [p for p in setup.model.parameters() if p.requires_grad]
        return TaskResult(
            status=status,
            validations=self.validations,
            phase_times=self.phase_times,
            time_to_accuracy=elapsed if status == "goal_reached" else None,
            steps=self.step,
            elapsed=elapsed,
            unit=setup.sample_unit,
            flops_per_sample=setup.flops_per_sample(self.data),
            gradient_bytes=sum(p.numel() * p.element_size() for p in trained),
            table=setup.table(self.data),
            energy_j=self.energy_j,
            profile=None if self.profiler is None else self.profiler.finish(),
        )

"""THE timed loop. Every task that trains goes through `train`; no task reads a clock.

What is measured: `elapsed` runs from the first touch of training data and never pauses (MLPerf Training's
rule), so it covers loading, validation, checkpoints and recovery. Inside a step the loop marks the phases
of `mlbench.training.timer`. Nothing in a step talks to another process but the gradients' own communication
and, every CHECK_EVERY steps, one number that tells whether the loss is still finite.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from mlbench.training import checkpoint
from mlbench.training.loss_meter import LossMeter
from mlbench.training.profiler import StepProfiler
from mlbench.training.reporter import Reporter
from mlbench.training.setup import TaskResult, TrainingSetup
from mlbench.training.sync import strategy
from mlbench.training.worker import Worker

CHECK_EVERY = 500  # steps between two looks at a loss that is no longer finite
REPORT_S = 2.0  # s; a report waits for all ranks and the controller (about 50 ms), so short epochs share one
PLAIN = nullcontext()  # made once: a short step lasts 100 us


class _Diverged(Exception):
    """The loss of a rank is not finite, or its loss scale has given up; raised on all ranks at one step."""


def train(setup: TrainingSetup, worker: Worker, *, report_s: float = REPORT_S) -> TaskResult:
    """Train until the goal, the last epoch or divergence; return what was measured on this rank.

    report_s: seconds between two reports, at least.
    """
    try:
        run = Run(setup, worker, report_s=report_s)
        reporter, timer = run.reporter, worker.timer
        first_epoch, run.step, run.samples = checkpoint.restore(setup, worker, reporter)
        reporter.start(run.step)
        if worker.keep_checkpoints and not worker.resume:
            with timer.outside_steps("report"):
                run.report(epoch=0)  # a start to go back to, and the moment at which the clock began
        with timer.outside_steps("loading"):
            run.data = setup.load()
        profiler = StepProfiler.of(worker)
        status = "goal_not_reached" if worker.goal else "completed"
        try:
            for epoch in range(first_epoch, setup.epochs):
                steps = setup.steps(run.data, epoch)
                count = len(steps)
                stops = {max(1, math.ceil(part * count)) for part in setup.validate_at}
                run.model.train()
                for done, micro_batches in enumerate(steps, start=1):
                    timer.end_phase("data_wait")
                    run.epoch = epoch + done / count
                    run.train_step(micro_batches)
                    if profiler is not None:
                        profiler.step()
                    if done in stops:
                        if run.validate(checkpoint_epoch=epoch + 1 if done == count else None):
                            status = "goal_reached"
                            break
                        run.model.train()
                if status == "goal_reached":
                    break
        except _Diverged:
            status = "diverged"
            if not reporter.validations or reporter.validations[-1]["step"] != run.step:
                reporter.record(run.epoch, run.step, {}, run.losses)
        with timer.outside_steps("report"):
            run.report()
        elapsed = reporter.validations[-1]["elapsed"] if reporter.validations else timer.elapsed()
        trained = [weight for weight in setup.model.parameters() if weight.requires_grad]
        return TaskResult(
            status=status,
            validations=reporter.validations,
            phase_times=reporter.phase_times,
            time_to_accuracy=elapsed if status == "goal_reached" else None,
            steps=run.step,
            elapsed=elapsed,
            unit=setup.sample_unit,
            flops_per_sample=setup.flops_per_sample(run.data),
            gradient_bytes=sum(weight.numel() * weight.element_size() for weight in trained),
            table=setup.table(run.data),
            energy_j=reporter.energy_j,
            peak_memory_bytes=worker.peak_memory_bytes(),
            profile=None if profiler is None else profiler.finish(),
        )
    finally:
        setup.close()


class Run:
    """A model under training: its step, its validation, and how far it is.

    - step, samples: trained so far; samples are of this rank. epoch: likewise, with the present one's part.
    """

    def __init__(self, setup: TrainingSetup, worker: Worker, *, report_s: float = REPORT_S) -> None:
        self.setup, self.worker = setup, worker
        self.sync = strategy.synchronise(setup.model, setup.optimizer, worker)
        self.model = self.sync.module
        self.autocast: AbstractContextManager = PLAIN  # entered in every batch
        if setup.autocast is not None:
            self.autocast = torch.autocast(worker.device.type, dtype=setup.autocast)
        self.weights = [weight for group in setup.optimizer.param_groups for weight in group["params"]]
        self.losses = LossMeter(worker.device)
        self.reporter = Reporter(worker, self.sync, unit=setup.sample_unit, report_s=report_s)
        self.data: Any = None
        self.step, self.samples, self.epoch = 0, 0, 0.0
        worker.timer.mean, worker.timer.heartbeat = worker.mean, self.heartbeat

    def train_step(self, micro_batches: Sequence[Any]) -> None:
        """Run forward, backward and the optimizer's step over one step's micro-batches."""
        setup, timer, scaler, samples = self.setup, self.worker.timer, self.setup.scaler, 0
        end_phase = timer.end_phase
        setup.before_step(self.step)
        for number, batch in enumerate(micro_batches, start=1):
            with PLAIN if number == len(micro_batches) else self.sync.accumulating():
                with self.autocast:
                    output = setup.forward(self.model, batch)
                    end_phase("forward")
                    loss = setup.loss(output, batch)
                    end_phase("loss")
                del output  # which may be large, and which backward rarely needs
                (loss if scaler is None else scaler.scale(loss)).backward()
                end_phase("backward")
            self.losses.add(loss.detach())
            samples += setup.samples(batch)
        if setup.optimizer_step is not None:
            setup.optimizer_step()
        elif scaler is not None:
            scaler.step(setup.optimizer)
        else:
            setup.optimizer.step()
        if scaler is not None:
            scaler.update()
        self.losses.end_step(scaler, len(micro_batches))
        for weight in self.weights:  # as zero_grad does, without its range for the profiler
            weight.grad = None
        end_phase("optimizer")
        self.sync.after_step(self.step)
        if setup.after_step is not None:
            setup.after_step()
            end_phase("optimizer")
        self.step += 1
        self.samples += samples
        if self.step % CHECK_EVERY == 0:
            self.stop_if_diverged()
        timer.end_step(samples)

    def validate(self, *, checkpoint_epoch: int | None = None) -> bool:
        """Validate on all workers and report; return whether the goal was reached.

        checkpoint_epoch: the epoch to go on with after a restart; None inside an epoch.
        """
        setup, worker, timer = self.setup, self.worker, self.worker.timer
        with timer.outside_steps("validation"):
            self.stop_if_diverged()
            if worker.rank == 0:
                worker.heartbeat({"doing": "validating"})
            self.model.eval()
            with torch.no_grad(), self.autocast, setup.validation_weights():
                self.sync.before_validation()
                metrics = setup.validate(setup.model, self.data)
                self.sync.after_validation()
        validation = self.reporter.record(self.epoch, self.step, metrics, self.losses)
        with timer.outside_steps("report"):
            reached = worker.goal is not None and worker.goal.reached(metrics[worker.goal.metric])
            validation["goal_reached"] = reached
            setup.after_validation({**metrics, "train_loss": validation["train_loss"]})
            if not all(map(math.isfinite, metrics.values())):
                raise _Diverged
            if not reached and self.reporter.due():
                self.report(epoch=checkpoint_epoch)
        return reached

    def report(self, *, epoch: int | None = None) -> None:
        """Send what was not sent yet and, where checkpoints are kept, the state at the start of `epoch`."""
        message, state = self.reporter.message(), None
        if self.worker.keep_checkpoints and epoch is not None:
            state = checkpoint.state(
                self.setup, self.worker, self.reporter, epoch=epoch, step=self.step, samples=self.samples
            )
        self.worker.report_validation(message, state)

    def stop_if_diverged(self) -> None:
        """Raise on all ranks alike if the loss of one is not finite, or its loss scale is stuck."""
        scaler = self.setup.scaler
        self.losses.fold()
        loss = math.inf if scaler is not None and scaler.stuck() else self.losses.total()
        if not math.isfinite(self.worker.sum([loss]).item()):
            raise _Diverged

    def heartbeat(self) -> None:
        """Say where training is."""
        self.reporter.heartbeat(self.epoch, self.step, samples=self.samples, loss=self.losses.mean())

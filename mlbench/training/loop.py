"""THE timed loop. Every task that trains goes through `train`. No task reads a clock.

`elapsed` runs from the first touch of training data and never pauses (MLPerf Training's rule). So it covers
loading, validation, checkpoints and recovery. Inside a step the loop marks the phases of
`mlbench.training.timer`. In a step, only gradients travel to other processes and, every CHECK_EVERY steps,
one number that shows whether the loss is still finite.
"""

import math
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from mlbench.training import checkpoint, compilation
from mlbench.training.profiler import StepProfiler
from mlbench.training.reporter import Reporter
from mlbench.training.setup import Setup, TaskResult
from mlbench.training.worker import Worker

CHECK_EVERY = 500  # steps between two looks at a loss that is no longer finite
REPORT_S = 2.0  # s. A report waits for all ranks and the controller (about 50 ms), so short epochs share one


class _Diverged(Exception):
    """The loss of a rank is not finite, or its loss scale has given up. Raised on all ranks at one step."""


def train(setup: Setup, worker: Worker, *, report_s: float = REPORT_S) -> TaskResult:
    """Train until the goal, the last epoch or divergence. Return what was measured on this rank.

    report_s: seconds between two reports, at least.
    """
    with closing(setup), compilation.cold(worker.compile):
        run = Run(setup, worker, report_s=report_s)
        reporter, timer = run.reporter, worker.timer
        first_epoch, run.step, run.samples = checkpoint.restore(run.trainer.stateful(), worker, reporter)
        reporter.start(run.step)
        if worker.keep_checkpoints and not worker.resume:
            with timer.outside_steps("report"):
                run.report(epoch=0)  # a start to go back to, and the moment at which the clock began
        with timer.outside_steps("loading"):
            run.data = setup.load()
        if worker.compile is not None and worker.rank == 0:
            worker.heartbeat({"doing": "compiling the training step, on the clock"})
        profiler = StepProfiler(worker) if worker.profile_steps else None
        status = "goal_not_reached" if worker.goal else "completed"
        try:
            for epoch in range(first_epoch, setup.epochs):
                steps = setup.steps(run.data, epoch)
                count = len(steps)
                stops = {max(1, math.ceil(part * count)) for part in setup.validate_at}
                run.trainer.train()
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
                        run.trainer.train()
                if status == "goal_reached":
                    break
        except _Diverged:
            status = "diverged"
            if not reporter.validations or reporter.validations[-1]["step"] != run.step:
                reporter.record(run.epoch, run.step, {}, run.trainer.losses)
        with timer.outside_steps("report"):
            run.report()
        elapsed = reporter.validations[-1]["elapsed"] if reporter.validations else timer.elapsed()
        return TaskResult(
            status=status,
            validations=reporter.validations,
            phase_times=reporter.phase_times,
            time_to_accuracy=elapsed if status == "goal_reached" else None,
            steps=run.step,
            elapsed=elapsed,
            unit=setup.sample_unit,
            flops_per_sample=setup.flops_per_sample(run.data),
            gradient_bytes=run.trainer.gradient_bytes(),
            table=setup.table(run.data),
            energy_j=reporter.energy_j,
            peak_memory_bytes=worker.peak_memory_bytes(),
            warnings=list(setup.warnings),
            profile=None if profiler is None else profiler.finish(),
        )


class Run:
    """A model under training: its validations, and how far it is.

    - trainer: the framework's part (mlbench/training/setup.py).
    - step, samples: trained so far, samples of this rank. epoch: likewise, with the current one's part.
    """

    def __init__(self, setup: Setup, worker: Worker, *, report_s: float = REPORT_S) -> None:
        self.setup, self.worker = setup, worker
        self.trainer = setup.trainer(worker)
        self.reporter = Reporter(worker, self.trainer.bytes_sent, unit=setup.sample_unit, report_s=report_s)
        self.data: Any = None
        self.step, self.samples, self.epoch = 0, 0, 0.0
        worker.timer.mean, worker.timer.heartbeat = worker.mean, self.heartbeat

    def train_step(self, micro_batches: Sequence[Any]) -> None:
        """Make one step over its micro-batches."""
        self.setup.before_step(self.step)
        samples = self.trainer.step(self.step, micro_batches)
        self.step += 1
        self.samples += samples
        if self.step % CHECK_EVERY == 0:
            self.stop_if_diverged()
        self.worker.timer.end_step(samples)

    def validate(self, *, checkpoint_epoch: int | None = None) -> bool:
        """Validate on all workers and report. Return whether the goal was reached.

        checkpoint_epoch: the epoch to go on with after a restart. None inside an epoch.
        """
        setup, worker, timer = self.setup, self.worker, self.worker.timer
        with timer.outside_steps("validation"):
            self.stop_if_diverged()
            if worker.rank == 0:
                worker.heartbeat({"doing": "validating"})
            with self.trainer.validating() as model:
                metrics = setup.validate(model, self.data)
        validation = self.reporter.record(self.epoch, self.step, metrics, self.trainer.losses)
        with timer.outside_steps("report"):
            finite = all(map(math.isfinite, metrics.values()))
            goal = worker.goal if finite else None
            reached = goal is not None and goal.reached(metrics[goal.metric])
            validation["goal_reached"] = reached
            setup.after_validation({**metrics, "train_loss": validation["train_loss"]})
            if not finite:
                raise _Diverged
            if not reached and self.reporter.due():
                self.report(epoch=checkpoint_epoch)
        return reached

    def report(self, *, epoch: int | None = None) -> None:
        """Send what was not sent yet and, if checkpoints are kept, the state at the start of `epoch`."""
        message, state = self.reporter.message(), None
        if self.worker.keep_checkpoints and epoch is not None:
            parts, done = self.trainer.stateful(), {"step": self.step, "samples": self.samples}
            state = checkpoint.state(parts, self.worker, self.reporter, epoch=epoch, **done)
        self.worker.report_validation(message, state)

    def stop_if_diverged(self) -> None:
        """Raise on all ranks alike if the loss of one is not finite, or it is stuck."""
        losses = self.trainer.losses
        losses.fold()
        loss = math.inf if self.trainer.stuck() else losses.total()
        if not math.isfinite(self.worker.sum([loss]).item()):
            raise _Diverged

    def heartbeat(self) -> None:
        """Report how far this rank is. It may get lost."""
        self.worker.heartbeat(
            {
                "rank": self.worker.rank,
                "epoch": self.epoch,
                "step": self.step,
                "loss": self.trainer.losses.mean(),
                "samples": self.samples,
                "unit": self.setup.sample_unit,
                "started_at": self.worker.timer.started_at,
            }
        )

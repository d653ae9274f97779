"""Report what a rank has measured, validation by validation, to the controller."""

import math
from collections.abc import Callable

from mlbench.record.messages import Report, ValidationMessage
from mlbench.record.phases import PhaseTimes
from mlbench.training import arrivals, clock_offset
from mlbench.training.loss_meter import LossMeter
from mlbench.training.stamps import Arrivals
from mlbench.training.worker import Worker


class Reporter:
    """Collects one rank's validations. Every rank calls each method at the same point.

    - bytes_sent(steps): by this rank so far, or None if they cannot be counted.
    - validations, phase_times: one entry a validation, with what was measured up to it.
    - energy_j: of this rank's node by part, from the start of the clock to the last validation.
    - clocks: when the run started, s on the clock of each host.
    """

    def __init__(
        self, worker: Worker, bytes_sent: Callable[[int], int | None], *, unit: str, report_s: float
    ) -> None:
        self.validations: list[ValidationMessage] = []
        self.phase_times: list[PhaseTimes] = []
        self.energy_j: dict[str, float] = {}
        self.clocks: dict[str, float] = {}
        self._worker, self._unit, self._report_s = worker, unit, report_s
        self._count_bytes = bytes_sent
        self._clock_offset: clock_offset.ClockOffset
        self._energy_before: dict[str, float] = {}  # J by part, when the clock started
        self._bytes_sent: int | None = 0  # up to the last validation
        self._unreported: list[tuple[ValidationMessage, PhaseTimes, Arrivals]] = []
        self._reported_at = 0.0  # s since the start on rank 0's clock, so that all ranks decide alike

    def start(self, step: int) -> None:
        """Start the clock. After a restart, at `step`, as of the first start."""
        worker = self._worker
        self._bytes_sent = self._count_bytes(step)
        self._clock_offset = clock_offset.ClockOffset(worker)
        worker.reset_peak_memory()
        worker.barrier()
        self._energy_before = worker.read_energy()
        self.clocks = clock_offset.start_clock(worker, self._clock_offset.estimates[-1].offset)

    def record(
        self, epoch: float, step: int, metrics: dict[str, float], losses: LossMeter
    ) -> ValidationMessage:
        """Return a validation that ends now, with rank 0's time and the mean loss over all ranks' steps."""
        worker, timer = self._worker, self._worker.timer
        times, own = timer.pop()
        assert times.elapsed is not None
        joules = worker.read_energy()
        self.energy_j = {part: joules[part] - j for part, j in self._energy_before.items() if part in joules}
        before, self._bytes_sent = self._bytes_sent, self._count_bytes(step)
        if before is not None and self._bytes_sent is not None:
            times.bytes_sent = self._bytes_sent - before
        with timer.outside_steps("report"):
            first = times.elapsed if worker.rank == 0 else 0.0
            loss, steps, elapsed = worker.sum([losses.total(), losses.steps(), first]).tolist()
            losses.reset()
        validation: ValidationMessage = {
            "epoch": epoch,
            "step": step,
            "elapsed": elapsed,
            "wall": timer.started_at + elapsed,
            "train_loss": loss / steps if steps and math.isfinite(loss) else None,
            "goal_reached": False,
            "metrics": {k: v if math.isfinite(v) else None for k, v in metrics.items()},
        }
        self.phase_times.append(times)
        self.validations.append(validation)
        self._unreported.append((validation, times, own))
        return validation

    def due(self) -> bool:
        """Return whether the last report is `report_s` seconds old."""
        return self.validations[-1]["elapsed"] - self._reported_at >= self._report_s

    def message(self) -> Report:
        """Return what was not reported yet, its communication split into waiting and transfer."""
        worker, offset = self._worker, self._clock_offset
        offset.measure()
        arrivals.split(
            [(times, own) for _, times, own in self._unreported],
            ranks=worker.world_size,
            to_common=offset.to_common,
            group=worker.control,
        )
        for _, times, _ in self._unreported:
            times.clock_error_s += offset.error()  # to that of a GPU's clock
        message: Report = {
            "started_at": worker.timer.started_at,
            "rank": worker.rank,
            "parts": [{"validation": v, "phase_times": t.plain()} for v, t, _ in self._unreported],
            "system": worker.drain_node_metrics(),
            "unit": self._unit,
        }
        self._unreported = []
        self._reported_at = self.validations[-1]["elapsed"] if self.validations else 0.0
        return message

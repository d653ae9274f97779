"""Clocks of several hosts brought to one: how far each rank's monotonic clock is from rank 0's, over time.

Ranks whose timers read the same clock (one boot of one host) are exactly 0 apart. For others, one rank a
clock exchanges messages with rank 0. The middle of the fastest round's two times at rank 0 is taken as the
moment at which the other read its clock. Half of that round bounds the error (Cristian 1989, "Probabilistic
clock synchronization"). Between two estimates the offset changes linearly: that is drift.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from mlbench.training.worker import Worker

ROUNDS = 20  # exchanges an estimate. The fastest counts


@dataclass
class OffsetEstimate:
    """At `at` on this rank's clock, `offset` seconds lead to rank 0's, with an error of at most `error`."""

    at: float
    offset: float
    error: float


class ClockOffset:
    """This rank's way to rank 0's clock. Every rank must make it, and call `measure`, at the same point."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        clocks = worker.gather(worker.timer.clock_id)
        # The first rank of each clock but rank 0's exchanges messages with rank 0.
        self._leaders = {clocks.index(clock) for clock in clocks} - {0}
        self._leader = clocks.index(clocks[worker.rank])
        self.estimates: list[OffsetEstimate] = []
        self.measure()

    def measure(self) -> None:
        """Estimate the offset again and keep it with the previous one."""
        worker, now = self._worker, self._worker.timer.now
        if not self._leaders:  # all ranks read the same clock
            self.estimates = [OffsetEstimate(now(), 0.0, 0.0)]
            return
        estimates = torch.zeros(worker.world_size, 3, dtype=torch.float64)
        for leader in sorted(self._leaders):
            if worker.rank == 0:
                estimates[leader] = torch.tensor(self._exchange(leader), dtype=torch.float64)
            elif worker.rank == leader:
                self._answer()
        dist.broadcast(estimates, 0, group=worker.control)
        at, offset, error = estimates[self._leader].tolist() if self._leader else (now(), 0.0, 0.0)
        self.estimates = [*self.estimates[-1:], OffsetEstimate(at, offset, error)]

    def to_common(self, at: np.ndarray) -> np.ndarray:
        """Return times on this rank's clock (s) as times on rank 0's."""
        times = [estimate.at for estimate in self.estimates]
        return at + np.interp(at, times, [estimate.offset for estimate in self.estimates])

    def error(self) -> float:
        """Return the bound of the error of the two latest estimates, s."""
        return max(estimate.error for estimate in self.estimates)

    def _exchange(self, leader: int) -> tuple[float, float, float]:
        now, group = self._worker.timer.now, self._worker.control
        message = torch.zeros(1, dtype=torch.float64)
        rounds = []
        for _ in range(ROUNDS):
            begin = now()
            dist.send(message, leader, group=group)
            dist.recv(message, leader, group=group)
            end = now()
            there = message.item()
            rounds.append(((end - begin) / 2, there, (begin + end) / 2 - there))
        error, there, offset = min(rounds)
        return there, offset, error

    def _answer(self) -> None:
        now, group = self._worker.timer.now, self._worker.control
        message = torch.zeros(1, dtype=torch.float64)
        for _ in range(ROUNDS):
            dist.recv(message, 0, group=group)
            message[0] = now()
            dist.send(message, 0, group=group)


def start_clock(worker: Worker, offset: float) -> dict[str, float]:
    """Start the timer, after a restart as of the first start. Return that moment on every host's clock.

    Wall clocks of two hosts are not compared. A host that took part before has the start of the run on its
    monotonic clock, and its offset from rank 0's is measured. If no such host is left, rank 0's wall clock
    decides, but never for less time than the checkpoint had seen.

    offset: seconds from this rank's clock to rank 0's.
    """
    timer, saved = worker.timer, worker.resume
    if saved is None:
        timer.start()
    else:
        here = saved["clocks"].get(timer.clock_id)
        candidates = worker.gather(None if here is None else here + offset)
        started = next((each for each in candidates if each is not None), None)
        if started is None:
            spent = max(saved["elapsed"], timer.wall_now() - saved["started_at"])
            started = worker.gather(timer.now() + offset - spent)[0]
        timer.start(started=started - offset, started_at=saved["started_at"])
    started = worker.gather(timer.started)[0]
    return dict(worker.gather([timer.clock_id, started - offset]))

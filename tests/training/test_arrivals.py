"""Waiting and transfer with real gloo processes, two buckets and a rank that is slow by a known amount."""

import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch import nn

from mlbench.config.compose import compose
from mlbench.record.phases import BLOCKS, PhaseTimes
from mlbench.training import clock_offset
from mlbench.training.loop import train
from mlbench.training.setup import TrainingSetup
from mlbench.training.timer import PhaseTimer
from mlbench.training.worker import Worker

SLOW_S = 0.15  # s that the straggler needs more in forward
TAIL_S = 0.03  # s between the two buckets' launches, in backward
STEPS = 12
DRIFT = 3e-4  # of the other host's clock, ten times a bad quartz
OFFSET_S = 1234.5


class Pause(torch.autograd.Function):
    """Lets backward pause between the gradients of the two layers."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        time.sleep(TAIL_S)
        return gradients[0]


class TwoBuckets(nn.Module):
    """Two layers of 80 kB each: a bucket of 0.05 MiB holds one."""

    def __init__(self, straggler: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(100, 200), nn.Linear(200, 100)
        self.straggler = straggler
        self.stamps: list[
            float
        ] = []  # s on the machine's clock, when each gradient of the last bucket is there
        for weight in self.first.parameters():
            weight.register_post_accumulate_grad_hook(lambda _: self.stamps.append(time.perf_counter()))

    def launches(self) -> list[float]:
        """Return when the last bucket of each of the last steps could be sent, by no clock of ours."""
        pairs = zip(self.stamps[::2], self.stamps[1::2], strict=True)
        return [max(pair) for pair in pairs][-STEPS:]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.straggler:
            time.sleep(SLOW_S)
        return self.second(Pause.apply(self.first(x)))


@dataclass
class Epoch:
    """Equal steps."""

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Any:
        return iter([[torch.ones(4, 100)]] * STEPS)


def timed(worker: Worker) -> tuple[PhaseTimes, list[float]]:
    """Train two epochs; return the second's times and launches. Rank 1 is slow and has another clock."""
    worker.sync = compose(["sync.bucket_cap_mb=0.05", "division=open"]).sync
    worker.timer = PhaseTimer()
    if worker.rank == 1:
        worker.timer = PhaseTimer(
            now=lambda: OFFSET_S + (1 + DRIFT) * time.perf_counter(), clock_id="another host"
        )
    torch.manual_seed(1)
    model = TwoBuckets(worker.rank == 1)
    setup = TrainingSetup(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        epochs=2,
        steps=lambda _, __: Epoch(),
        forward=lambda net, x: net(x),
        loss=lambda output, _: output.square().mean(),
        validate=lambda *_: {"loss": 0.0},
        samples=len,
    )
    times = train(setup, worker, report_s=0).phase_times[1]  # DDP makes its buckets in the first steps
    return times, model.launches()


def lateness(own: list[float], other: list[float]) -> list[float]:
    """Return by how much a rank was later than the other at each step, s: its sleep, and noise."""
    return [mine - theirs for mine, theirs in zip(own, other, strict=True)]


@pytest.mark.slow
def test_a_slow_rank_is_found_and_the_others_wait_for_it() -> None:
    (fast, first), (slow, second) = run_ranks(timed, 2)
    slept = SLOW_S * STEPS
    for times, late, sign in ((fast, lateness(first, second), -1), (slow, lateness(second, first), 1)):
        waited = sum(max(0.0, -each) for each in late)
        assert times.phases["wait"] == pytest.approx(waited, abs=0.1 * slept + STEPS * times.clock_error_s)
        typical = statistics.median(block.median_s for block in times.lateness)
        expected = statistics.median(statistics.median(part) for part in np.array_split(late, BLOCKS))
        assert typical == pytest.approx(expected, abs=0.1 * SLOW_S + times.clock_error_s)
        assert sign * typical > 0.5 * SLOW_S
        assert sum(block.steps for block in times.lateness) == STEPS
        assert sum(block.last for block in times.lateness) == sum(each > 0 for each in late)
        assert (times.clock_error_s > 0) == (sign > 0)
        assert math.fsum(times.phases.values()) == pytest.approx(times.seconds, rel=1e-9)
        # The first bucket travels while backward pauses; the other's transfer starts after it.
        assert times.phases["backward"] > 0.9 * TAIL_S * STEPS
    assert 0 < slow.phases["transfer"] < fast.phases["wait"]
    assert 0 < slow.overlapped_communication < slow.phases["backward"]


def offsets(worker: Worker) -> list[tuple[float, float]]:
    """Return estimates of a known offset, at several times, and their error bounds."""
    if worker.rank == 2:
        worker.timer = PhaseTimer(
            now=lambda: OFFSET_S + (1 + DRIFT) * time.perf_counter(), clock_id="another host"
        )
    clock = clock_offset.ClockOffset(worker)
    errors = []
    for _ in range(3):
        time.sleep(0.05)
        clock.measure()
        at = clock.estimates[-1].at
        true = (at - OFFSET_S) / (1 + DRIFT) - at if worker.rank == 2 else 0.0
        errors.append((clock.estimates[-1].offset - true, clock.error()))
    return errors


def test_an_offset_between_clocks_is_known_within_its_bound_and_is_nought_on_one_clock() -> None:
    rank_0, rank_1, rank_2 = run_ranks(offsets, 3)
    assert rank_0 == rank_1 == [(0.0, 0.0)] * 3
    for difference, bound in rank_2:
        assert bound > 0 and abs(difference) <= bound

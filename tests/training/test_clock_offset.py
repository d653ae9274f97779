"""The offset between two hosts' clocks, over a network whose delays are chosen here."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mlbench.training import clock_offset
from mlbench.training.clock_offset import ROUNDS, ClockOffset

OFFSET_S = 1000.0  # rank 0's clock less rank 1's


class Network:
    """Rank 0's view: a message takes `there` s to rank 1 and `back` s to return; rounds differ."""

    def __init__(self, delays: list[tuple[float, float]]) -> None:
        self.now, self.delays, self.read = 0.0, iter(delays), 0.0

    def send(self, message: torch.Tensor, rank: int, *, group: Any) -> None:
        there, self.back = next(self.delays)
        self.now += there
        self.read = self.now - OFFSET_S  # rank 1 reads its clock when the message arrives

    def recv(self, message: torch.Tensor, rank: int, *, group: Any) -> None:
        message[0] = self.read
        self.now += self.back

    def broadcast(self, estimates: torch.Tensor, source: int, *, group: Any) -> None:
        self.estimates = estimates


def estimate(monkeypatch: pytest.MonkeyPatch, delays: list[tuple[float, float]]) -> list[float]:
    """Return what rank 0 tells rank 1: when, offset, bound of the error."""
    network = Network(delays)
    monkeypatch.setattr(clock_offset, "dist", network)
    timer = SimpleNamespace(now=lambda: network.now, clock_id="here")
    worker: Any = SimpleNamespace(
        rank=0, world_size=2, control=None, timer=timer, gather=lambda _: ["here", "there"]
    )
    ClockOffset(worker)
    return network.estimates[1].tolist()


def test_equal_ways_there_and_back_give_the_offset_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    at, offset, error = estimate(monkeypatch, [(0.25, 0.25)] * ROUNDS)
    assert (at, offset, error) == (0.25 - OFFSET_S, OFFSET_S, 0.25)


def test_the_fastest_exchange_counts_and_its_half_bounds_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [(0.5, 4.0)] * (ROUNDS - 1)
    _, offset, error = estimate(monkeypatch, [*slow, (0.125, 0.375)])
    assert error == 0.25
    assert offset == OFFSET_S + 0.125 and abs(offset - OFFSET_S) <= error


def test_between_two_estimates_the_offset_changes_linearly_and_stays_beyond_them() -> None:
    import numpy as np

    offset = ClockOffset.__new__(ClockOffset)
    offset.estimates = [
        clock_offset.OffsetEstimate(10.0, 1.0, 0.1),
        clock_offset.OffsetEstimate(20.0, 2.0, 0.3),
    ]
    common = offset.to_common(np.array([0.0, 10.0, 15.0, 20.0, 30.0]))
    assert common.tolist() == [1.0, 11.0, 16.5, 22.0, 32.0]
    assert offset.error() == 0.3

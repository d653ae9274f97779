"""What is wrong with machines is named, and nothing else: from numbers, over loopback, on emulated hosts."""

import itertools
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from mlbench.config.compose import hardware
from mlbench.launch import check
from mlbench.tasks.allreduce import links as pairs
from mlbench.tasks.allreduce import survey as machines
from mlbench.tasks.allreduce import verdict
from mlbench.tasks.allreduce.links import MachinePair
from mlbench.training.worker import Worker

HOSTS = ["a", "b", "c", "d"]
RATE = 1.25e8  # B/s


def measured(
    rates: dict[Any, float] | None = None, lost: dict[Any, float] | None = None
) -> list[MachinePair]:
    """Return every pair both ways; `rates` and `lost` say what a machine, or an ordered pair, is worse by."""

    def worst(values: dict[Any, float], pair: tuple[int, int], default: float, choose: Any) -> float:
        return choose([values.get(key, default) for key in (pair, *pair)])

    return [
        MachinePair(*pair, 1e-3, RATE * worst(rates or {}, pair, 1.0, min), worst(lost or {}, pair, 0.0, max))
        for pair in itertools.permutations(range(4), 2)
    ]


def faults(some: list[MachinePair], flops: tuple[float, ...] = (9e9,) * 4, **options: Any) -> list[str]:
    rates = [{"threads": 1, "cpu_gemm_flops_per_s": each} for each in flops]
    options = {"expected_bytes_per_s": None, "gpus": [[]] * 4} | options
    return verdict.faults(HOSTS, rates, options.pop("gpus"), some, **options)


def test_healthy_machines_have_no_fault_though_no_two_are_quite_alike() -> None:
    some = measured({0: 0.95, 1: 0.9, (2, 3): 0.75}, {1: 0.002})
    assert faults(some, (9e9, 8.2e9, 9.1e9, 7.5e9)) == []


def test_the_link_of_a_machine_is_named_and_not_those_of_its_partners(snapshot: SnapshotAssertion) -> None:
    assert faults(measured({2: 0.4})) == snapshot


def test_a_cable_between_two_machines_is_named_in_its_direction(snapshot: SnapshotAssertion) -> None:
    some = measured({(1, 3): 0.1})
    assert faults(some) == snapshot


def test_a_link_that_loses_packets_is_lossy_and_not_slow_as_well(snapshot: SnapshotAssertion) -> None:
    """TCP is slow there for the losses; what the pairs of its machine reach says nothing of the rate."""
    some = [
        pair._replace(lost=0.02, bytes_per_s=0.1 * RATE) if pair.target == 2 else pair for pair in measured()
    ]
    assert faults(some) == snapshot


def test_all_links_may_be_slower_than_the_profile_says() -> None:
    named = faults(measured(), expected_bytes_per_s=10 * RATE)
    assert len(named) == 4 and all("the profile's 10 Gbit/s" in sentence for sentence in named)
    assert faults(measured(), expected_bytes_per_s=RATE) == []


def test_a_slow_processor_and_what_a_machine_said_of_its_gpus_are_named(snapshot: SnapshotAssertion) -> None:
    gpus = [[], ["GPU 3 of 8 is 20 % slower than the others in cuda gemm flops: all wait for it"], [], []]
    slow, gpu = faults(measured(), (9e9, 9e9, 9e9, 4.5e9), gpus=gpus)
    assert slow == snapshot
    assert gpu.startswith("b: GPU 3 of 8")


@given(st.integers(2, 33))
def test_every_two_machines_meet_once_and_nobody_twice_in_a_round(count: int) -> None:
    rounds = list(pairs.rounds(count))
    assert all(len({end for pair in some for end in pair}) == 2 * len(some) for some in rounds)
    met = [pair for some in rounds for pair in some]
    assert sorted(met) == list(itertools.combinations(range(count), 2))


def test_the_best_of_several_looks_counts() -> None:
    busy, quiet = MachinePair(0, 1, 2e-3, 1e6, 0.1), MachinePair(0, 1, 1e-3, 9e5, 0.0)
    assert pairs.better(busy, quiet) == pairs.better(quiet, busy) == MachinePair(0, 1, 1e-3, 1e6, 0.0)


def expected(name: str, backend: str) -> float:
    return check.expected_bytes_per_s(hardware(name), backend)


def test_a_link_is_held_to_what_its_connections_can_reach() -> None:
    """c5n.18xlarge has 100 Gbit/s of many connections, and 5 of one."""
    assert expected("aws_c5n_18xlarge", "gloo") == pairs.STREAMS * 5e9 / 8
    assert expected("gcp_n1_t4", "gloo") == 7.5e9 / 8
    assert expected("aws_c5n_18xlarge", "nccl") == 100e9 / 8, "NCCL has as many flows as it takes"


def test_the_gpus_of_a_machine_are_calibrated_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, eight would take 24 s a machine, and share neither power nor air."""
    together, current = threading.Barrier(8, timeout=60), threading.local()  # which no single one passes

    def calibrate(threads: int, **settings: Any) -> dict[str, float]:
        together.wait()
        return {"gpu": current.number}

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: setattr(current, "number", number))
    monkeypatch.setattr(machines.calibrate, "calibrate", calibrate)
    assert machines._gpus(2, range(8)) == [{"gpu": number} for number in range(8)]


@pytest.mark.parametrize(
    ("rank", "device", "ranks", "rates", "gpus", "calls"),
    [
        (0, "cuda:0", [[0, 1]], {"cpu": 1.0, "ring": 5.0}, [0], "cpu barrier gpu barrier ring"),
        (1, "cuda:1", [[0, 1]], {"ring": 5.0}, [1], "barrier gpu barrier ring"),
        (1, "cuda:0", [[0], [1]], {"cpu": 1.0}, [0], "barrier cpu barrier gpu barrier"),
        (0, "cpu", [[0, 1]], {"cpu": 1.0}, [0, 1], "cpu barrier gpu gpu"),
        (1, "cpu", [[0, 1]], {}, [], "barrier"),
    ],
)
def test_each_rank_measures_its_gpu_or_the_first_of_a_machine_all_and_they_reduce_afterwards(
    rank: int, device: str, ranks: Any, rates: Any, gpus: Any, calls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, current = list[str](), threading.local()

    def calibrate(threads: int, *, devices: list[str], **settings: Any) -> dict[str, float]:
        made.append("cpu" if devices == ["cpu"] else "gpu")
        return {"cpu": 1.0} if devices == ["cpu"] else {"gpu": current.number}

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: setattr(current, "number", number))
    monkeypatch.setattr(machines.calibrate, "calibrate", calibrate)
    monkeypatch.setattr(machines, "ring", lambda *given: made.append("ring") or 5.0 * (given[1] is ranks))
    monkeypatch.setattr(Worker, "barrier", lambda _: made.append("barrier"))
    worker = Worker(rank=rank, world_size=2, device=torch.device(device))
    expected = {name.replace("ring", "gpu_ring_busbw_per_s"): rate for name, rate in rates.items()}
    assert machines._rates(worker, ranks) == (expected, [{"gpu": number} for number in gpus])
    assert made == calls.split()

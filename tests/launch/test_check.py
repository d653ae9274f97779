"""What is wrong with machines is named, and nothing else: from numbers, over loopback, on emulated hosts."""

import itertools
import os
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlbench.launch.check import pairs, text, verdict
from mlbench.launch.check.pairs import MachinePair

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


def test_the_link_of_a_machine_is_named_and_not_those_of_its_partners() -> None:
    assert faults(measured({2: 0.4})) == ["the link of c is slow: 400 Mbit/s of the others' 1 Gbit/s"]


def test_a_cable_between_two_machines_is_named_in_its_direction() -> None:
    some = measured({(1, 3): 0.1})
    assert faults(some) == ["the link from b to d is slow: 100 Mbit/s of the others' 1 Gbit/s"]


def test_a_link_that_loses_packets_is_lossy_and_not_slow_as_well() -> None:
    """TCP is slow there for the losses; what the pairs of its machine reach says nothing of the rate."""
    some = [
        pair._replace(lost=0.02, bytes_per_s=0.1 * RATE) if pair.target == 2 else pair for pair in measured()
    ]
    assert faults(some) == ["the link of c loses 2 % of the packets"]


def test_all_links_may_be_slower_than_the_profile_says() -> None:
    named = faults(measured(), expected_bytes_per_s=10 * RATE)
    assert len(named) == 4 and all("of the profile's 10 Gbit/s" in sentence for sentence in named)
    assert faults(measured(), expected_bytes_per_s=RATE) == []


def test_a_slow_processor_and_what_a_machine_said_of_its_gpus_are_named() -> None:
    gpus = [[], ["GPU 3 of 8 is 20 % slower than the others in cuda gemm flops: all wait for it"], [], []]
    slow, gpu = faults(measured(), (9e9, 9e9, 9e9, 4.5e9), gpus=gpus)
    assert slow == "d is slow: its CPU does 4.5 GFLOP/s, the others 9 GFLOP/s"
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


def test_what_it_says_to_people_names_the_faults_or_that_there_is_none() -> None:
    result = {
        "machines": HOSTS,
        "pairs": [pair._asdict() for pair in measured()],
        "ring_busbw_bytes_per_s": 1e8,
        "faults": [],
    }
    assert text(result).splitlines()[-1] == "nothing is slow and no packet is lost"
    assert text(result | {"faults": ["x is slow"]}).splitlines()[-1] == "x is slow"
    assert text(result).startswith("4 machines, 12 links both ways: 1 Gbit/s to 1 Gbit/s, all-reduce")


@pytest.mark.slow
@pytest.mark.wing("emulation")
@pytest.mark.skipif(
    os.environ.get("MLBENCH_TEST_QUIET") != "1", reason="needs a quiet machine: MLBENCH_TEST_QUIET=1"
)
@pytest.mark.parametrize("case", ["healthy", "slow_link", "slow_cpu", "lossy_link"])
def test_on_emulated_hosts_what_is_wrong_is_named(case: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, as network= does")
    check: Any = import_module("check")
    faults = check.faults(case)
    assert check.right(case, faults), faults

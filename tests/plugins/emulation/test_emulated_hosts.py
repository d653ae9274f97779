"""What emulated hosts are to be, computed without making any."""

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlbench.clusters import node, placement
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.plugins.emulation import kernel, probe, ray_hosts, topology, user_space
from mlbench.plugins.emulation.measurement import LinkMeasurement
from mlbench.plugins.emulation.namespace import Namespace


def emulated(*overrides: str, workers: int = 2) -> Experiment:
    return compose(["network=1gbit_1ms", f"workers={workers}", *(f"network.{word}" for word in overrides)])


@pytest.mark.parametrize("part", ["round_trip_ms", "bandwidth_mbit_s", "bandwidth_back_mbit_s"])
def test_more_than_ten_percent_off_the_profile_is_refused(part: str) -> None:
    values = {"round_trip_ms": 10.0, "bandwidth_mbit_s": 100.0, "bandwidth_back_mbit_s": 40.0}

    def refused(expected: dict[str, float], measured: dict[str, float]) -> int:
        wanted = {f"expected_{name}": value for name, value in expected.items()}
        more = {"source": 0, "target": 1, "round_trip_min_ms": 0.0, "lost_percent": None}
        return len(probe.deviations(LinkMeasurement.model_validate(measured | wanted | more)))

    factors = (0.89, 0.91, 1.09, 1.11)
    assert [refused(values, values | {part: factor * values[part]}) for factor in factors] == [1, 0, 0, 1]
    none = values | {"round_trip_ms": 0.0}  # ten percent of no time is no time, so all was refused
    assert [refused(none, none | {"round_trip_ms": delay}) for delay in (0.033, 0.3)] == [0, 1]


@pytest.mark.parametrize(
    ("racks", "racks_of_hosts"), [(2, [0, 0, 1, 1]), (3, [0, 0, 1, 2]), (4, [0, 1, 2, 3]), (1, [0] * 4)]
)
def test_there_are_as_many_racks_as_the_profile_says(racks: int, racks_of_hosts: list[int]) -> None:
    network = emulated(f"racks={racks}", workers=4).network
    assert [topology.rack_of(host, network, 4) for host in range(4)] == racks_of_hosts


def test_the_kernel_s_cables_add_up_to_the_profile() -> None:
    """netem(8): `delay TIME JITTER`, `loss PERCENT` and `rate BITS` are of what leaves one interface.

    A rate counts Ethernet's 14 bytes before a packet, too. A jitter is uniform if it is on one cable alone.
    """
    overrides = (
        "bandwidth_mbit_s=80",
        "bandwidth_down_mbit_s=40",
        "delay_ms=5",
        "jitter_ms=1",
        "loss_percent=5",
    )
    racks = ("racks=2", "rack_delay_ms=3", "rack_bandwidth_mbit_s=60")
    network = emulated(*overrides, *racks).network
    hosts = [Namespace(f"host{index}", 0, 0) for index in range(2)]
    paths = list(topology.paths(network, 2))
    lines = kernel.commands(network, paths, hosts, ["198.19.0.10", "198.19.0.11"], "link")
    netem = [(host and host.hostname, line.split()) for host, line in lines if "netem" in line]
    by_cable = {(host, command[command.index("dev") + 1]): " ".join(command) for host, command in netem}
    path = [by_cable[cable] for cable in (("host0", "link"), (None, "up0"), (None, "down1"), (None, "host1"))]
    rates = [number(line, r"rate (\d+)bit") * 1500 / 1514 for line in path]
    assert rates == pytest.approx([80e6, 60e6, 60e6, 40e6], abs=1)
    assert sum(number(line, r"delay (\d+)us") for line in path) == 5000 + 3000
    assert sorted(number(line, r"delay \d+us (\d+)us") for line in path) == [0, 0, 0, 1000]
    arrived = math.prod(1 - number(line, r"loss ([\d.]+)%") / 100 for line in path)
    assert arrived == pytest.approx(0.95, abs=1e-6)


@pytest.mark.parametrize(("loss_percent", "single"), [(0, False), (0.01, True)])
def test_the_kernel_loses_single_packets_and_not_all_that_tcp_hands_it_at_once(
    loss_percent: float, single: bool
) -> None:
    """ip-link(8), `gso_max_segs`: TCP makes packets of the MTU; else netem drops up to 44 of them as one."""
    network = emulated(f"loss_percent={loss_percent}").network
    hosts = [Namespace(f"host{index}", 0, 0) for index in range(2)]
    paths, addresses = list(topology.paths(network, 2)), ["198.19.0.10", "198.19.0.11"]
    lines = [line for host, line in kernel.commands(network, paths, hosts, addresses, "link") if host]
    up = [line for line in lines if line.startswith("ip link set dev link") and line.endswith(" up")]
    assert ["gso_max_segs 1 " in line for line in up] == [single, single]


@pytest.mark.parametrize("name", ["cpus", "slow_cpus"])
def test_a_share_below_the_kernel_s_least_quota_is_refused(name: str) -> None:
    assert getattr(emulated(f"{name}=0.1", "slow_rank=1", "slow_bandwidth_mbit_s=9").network, name) == 0.1
    with pytest.raises(UserError, match=f"network.{name}=0.09: .*0.1"):
        emulated(f"{name}=0.09")


def number(line: str, pattern: str) -> float:
    """Return the number in a line, 0 where the line has none."""
    match = re.search(pattern, line)
    return float(match[1]) if match else 0.0


@pytest.mark.parametrize(
    ("overrides", "workers", "threads", "crowded"),
    [
        (("cpus=1",), 2, 1, False),
        (("cpus=0.5",), 2, 1, False),  # each has half a CPU of its own
        (("cpus=0.5",), 4, 1, False),
        (("cpus=0.6",), 4, 1, True),  # four hosts of 0.6 CPUs on a machine of 2
        (("cpus=2",), 2, 2, True),  # two hosts of 2 CPUs on a machine of 2
        (("cpus=1", "hosts=2"), 4, 1, True),
    ],
)
def test_workers_share_the_cpus_of_their_host(
    overrides: tuple[str, ...], workers: int, threads: int, crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "usable_cpus", lambda: 2)
    experiment = emulated(*overrides, workers=workers)
    resources = placement.worker_resources(experiment, [{"CPU": 2.0}])  # as a preview and a sweep ask
    assert (resources.threads, resources.oversubscribed) == (threads, crowded)
    hosts = [selector[ray_hosts.LABEL] for selector in ray_hosts._hosts(experiment)]
    assert hosts == (
        ["0", "0", "1", "1"] if "hosts=2" in overrides else [str(rank) for rank in range(workers)]
    )


@pytest.mark.parametrize("verbose", [False, True])
def test_hosts_look_for_the_workers_output_only_where_it_is_shown(
    verbose: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host's log monitor looks for it ten times a second, on the CPUs that the workers train on."""
    given: list[list[str]] = []
    monkeypatch.setattr(ray_hosts, "_ray_start", lambda *values, **_: given.append(values[2]))
    experiment = compose(["network=1gbit_1ms", "workers=2", f"verbose={verbose}"])
    links: Any = SimpleNamespace(switch=None, hosts=[None, None])
    ray_hosts._start_head(experiment, links.switch, Path("/tmp"))
    ray_hosts._start_host(experiment, links, 0, Path("/tmp"))
    assert [f"--include-log-monitor={verbose}" in arguments for arguments in given] == [True, True]


@pytest.mark.parametrize(
    ("gso_type", "gso_size", "data", "wire"),
    [
        (0, 0, 1000, 1000),
        (1, 1448, 52 + 1448, 1500),
        (1, 1448, 52 + 3 * 1448, 4500),
        (1, 1448, 52 + 1449, 1553),
    ],
)
def test_a_large_packet_counts_the_headers_of_its_segments(
    gso_type: int, gso_size: int, data: int, wire: int
) -> None:
    header = bytes([0, gso_type, 0, 0]) + gso_size.to_bytes(2, "little") + bytes(4)
    assert user_space.wire_bytes(header + bytes(data)) == wire


def test_equal_cables_in_a_row_add_no_time_and_a_full_queue_drops() -> None:
    first, second, slow = (
        user_space.CableQueue(1000, 1.0),
        user_space.CableQueue(1000, 1.0),
        user_space.CableQueue(100, 1.0),
    )
    assert first.end(0.0, 100, 0.0) == pytest.approx(0.1)
    assert second.end(0.1, 100, 0.1) == pytest.approx(0.1)
    assert slow.end(0.1, 100, 0.1) == pytest.approx(1.0)
    assert slow.end(0.2, 100, 0.1) == pytest.approx(2.0)
    assert slow.end(0.3, 100, 0.1) is None

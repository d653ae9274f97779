"""Describe the cables between two emulated hosts, and the expected values of the path.

A cable with a direction up and one down connects every host to its rack's switch. If there are several racks,
a cable each connects them to one more switch. All cables are full duplex. The delay is that from host to
host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from mlbench.config.network import Network


@dataclass(frozen=True)
class Cable:
    """One direction of a cable."""

    name: str  # e.g. "host 0 up"
    bandwidth_mbit_s: float


@dataclass(frozen=True)
class Path:
    """The path of packets from host `source` to host `target`: cables in their order."""

    source: int
    target: int
    cables: tuple[Cable, ...]
    delay_ms: float

    @property
    def bandwidth_mbit_s(self) -> float:
        """The bandwidth available to one stream."""
        return min(cable.bandwidth_mbit_s for cable in self.cables)


def hosts(network: Network, workers: int) -> int:
    """Return how many hosts a run with so many workers has."""
    return network.hosts or workers


def host_of(rank: int, network: Network, workers: int) -> int:
    """Return the host of a rank: hosts get equal stretches of ranks."""
    return rank // (workers // hosts(network, workers))


def rack_of(host: int, network: Network, count: int) -> int:
    """Return the rack of one of `count` hosts: racks get stretches of hosts, as equal as possible."""
    return host * network.racks // count


def slow_host(network: Network, workers: int) -> int | None:
    """Return the host of the slow rank, or None if no rank is slow."""
    return None if network.slow_rank is None else host_of(network.slow_rank, network, workers)


def paths(network: Network, workers: int) -> Iterator[Path]:
    """Yield the path of every ordered pair of hosts."""
    count, slow = hosts(network, workers), slow_host(network, workers)
    assert network.bandwidth_mbit_s is not None
    up, down = {}, {}
    for host in range(count):
        limit = network.slow_bandwidth_mbit_s if host == slow else None
        up[host] = Cable(f"host {host} up", limit or network.bandwidth_mbit_s)
        down[host] = Cable(
            f"host {host} down", limit or network.bandwidth_down_mbit_s or network.bandwidth_mbit_s
        )
    for source, target in permutations(range(count), 2):
        between: tuple[Cable, ...] = ()
        racks = rack_of(source, network, count), rack_of(target, network, count)
        delay_ms = network.delay_ms
        if racks[0] != racks[1]:
            bandwidth = network.rack_bandwidth_mbit_s or network.bandwidth_mbit_s
            between = Cable(f"rack {racks[0]} up", bandwidth), Cable(f"rack {racks[1]} down", bandwidth)
            delay_ms += network.rack_delay_ms
        yield Path(source, target, (up[source], *between, down[target]), delay_ms)

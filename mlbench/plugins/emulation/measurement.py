"""Store the measurements of the links of emulated hosts: `links` of a record's extras."""

from mlbench.record.format import counted
from mlbench.record.record import Record, Values

EXTRA = "links"


class LinkMeasurement(Values):
    """The measurements between two emulated hosts before the run, and the values of their profile."""

    source: int  # numbers of the hosts
    target: int
    round_trip_ms: float  # median
    round_trip_min_ms: float
    bandwidth_mbit_s: float  # from source to target, packets with headers
    bandwidth_back_mbit_s: float  # from target to source
    lost_percent: float | None  # of the packets, if the profile has losses
    expected_round_trip_ms: float
    expected_bandwidth_mbit_s: float
    expected_bandwidth_back_mbit_s: float


class EmulatedLinks(Values):
    """How the hosts of a run were emulated."""

    kind: str  # "netem" (by the kernel) or "user space"
    hosts: int
    measured: list[LinkMeasurement]


def of(record: Record) -> EmulatedLinks | None:
    """Return how the hosts of a run were emulated, or None for the machines' real network."""
    links = record.extras.get(EXTRA)
    return None if links is None else EmulatedLinks.model_validate(links)


def rows(record: Record) -> list[tuple[str, str]]:
    """Return label and text of each row of the full card."""
    links = of(record)
    if links is None:
        return []
    lines = [("network", f"{counted(links.hosts, 'emulated host')}, links by {links.kind}")]
    for link in links.measured:
        text = (
            f"round trip {link.round_trip_ms:.3g} ms (profile {link.expected_round_trip_ms:g}), "
            f"{link.bandwidth_mbit_s:.4g} Mbit/s there ({link.expected_bandwidth_mbit_s:g}), "
            f"{link.bandwidth_back_mbit_s:.4g} Mbit/s back ({link.expected_bandwidth_back_mbit_s:g})"
        )
        lost = "" if link.lost_percent is None else f", {link.lost_percent:.2g} % of packets lost"
        lines.append((f"hosts {link.source} and {link.target}", text + lost))
    return lines

"""Price what a cloud charges in addition to workers: head, control plane, disks, NAT gateway, minimum."""

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from mlbench.config.errors import ResultError
from mlbench.config.experiment import FrozenModel, Hardware, NonNegativeFloat, PositiveFloat, PositiveInt

HOURS_PER_MONTH = 730  # h, 365 days of 24 h over 12, as providers compute


class Overhead(FrozenModel):
    """Prices of a provider's cluster without its workers, as `mlbench.cluster up` makes it."""

    head_type: str
    head_usd_per_hour: PositiveFloat
    control_plane_usd_per_hour: NonNegativeFloat
    disk_type: str  # of the head, and of workers whose profile names no other
    disk_gb: PositiveInt  # of each node, the head's too
    disk_usd_per_gb_month: dict[str, NonNegativeFloat]  # by type
    nat_usd_per_hour: NonNegativeFloat
    nat_usd_per_hour_and_node: NonNegativeFloat
    nat_nodes: Annotated[int, Field(ge=0)]  # nodes above which the gateway costs no more
    minimum_s: NonNegativeFloat  # s that a node is billed at least
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]  # ISO date of the oldest price
    source: str
    lacking: str  # what is billed, too, and cannot be known beforehand


@cache
def overhead(provider: str) -> Overhead:
    """Return the prices of a provider's cluster. Raises UserError for a provider that has none."""
    prices = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    if provider not in prices:
        raise ResultError(f"no cluster prices for {provider}", hint="gke and aws have them")
    return Overhead.model_validate(prices[provider])


def hourly(hardware: Hardware, nodes: int, *, spot: bool, disk_gb: int | None = None) -> dict[str, float]:
    """Return USD an hour by part of a cluster with this many worker nodes. The head is on demand.

    `disk_gb` is the size of a boot disk (None: the provider's usual one). Raises UserError if the hardware
    has no machine, no price, or no requested spot price, or if its disk has no price.
    """
    machine, price = hardware.machine, hardware.price
    if machine is None or price is None:
        lacks = "no price" if machine else "no machine of a cloud"
        raise ResultError(
            f"hardware={hardware.name} has {lacks}, so a cluster of it has no price",
            hint="choose another profile, or add a price to your price file (docs/clusters.md)",
        )
    worker = price.usd_per_hour_spot if spot else price.usd_per_hour
    if worker is None:
        raise ResultError(
            f"hardware={hardware.name} has no spot price",
            hint="give spot=false, or add the spot price to your price file (docs/clusters.md)",
        )
    beside = overhead(machine.provider)
    prices, disk = beside.disk_usd_per_gb_month, machine.disk_type or beside.disk_type
    if disk not in prices:
        raise ResultError(
            f"no price for the disk {disk} of hardware={hardware.name}",
            hint="choose another profile",
        )
    usd_per_gb_month = prices[beside.disk_type] + nodes * prices[disk]
    nodes_with_nat = min(nodes + 1, beside.nat_nodes)
    return {
        "workers": nodes * worker,
        "head": beside.head_usd_per_hour,
        "control plane": beside.control_plane_usd_per_hour,
        "disks": (disk_gb or beside.disk_gb) * usd_per_gb_month / HOURS_PER_MONTH,
        "NAT gateway": beside.nat_usd_per_hour + nodes_with_nat * beside.nat_usd_per_hour_and_node,
    }

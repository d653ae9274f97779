"""Compute the cost of a run from nodes, hours and the price in its hardware profile."""

import math
from dataclasses import dataclass

from mlbench.config.experiment import Experiment, Hardware
from mlbench.record.overhead import hourly, overhead


@dataclass(frozen=True)
class Bill:
    """The whole cost of a run's dedicated cluster from its submission to its end, in USD.

    - usd, usd_spot: with workers on demand, and on spot nodes (None: no spot price). The head is on demand.
    - parts: `usd` by part: workers, head, control plane, disks, NAT gateway.
    - provisioning_s: s from the submission to the command's start, or None if not measured. If None, it is
      not billed here.
    - billed_s: s of every part, at least the provider's minimum.
    - date: of the oldest price. lacking: what is billed, too, and cannot be known.
    """

    usd: float
    usd_spot: float | None
    parts: dict[str, float]
    provisioning_s: float | None
    billed_s: float
    date: str
    source: str
    lacking: str


@dataclass(frozen=True)
class Cost:
    """A run's price in USD, or None if there is no spot price or the goal was not reached.

    These are MLBench's formula: the workers' nodes, from the first data to the goal or for the whole command.
    `whole` is what such a cluster is billed for.
    """

    nodes: int
    wall_usd: float  # the whole wall clock, start-up included, at the on-demand price
    wall_usd_spot: float | None
    goal_usd: float | None  # from the first access to training data to the goal
    goal_usd_spot: float | None
    date: str  # ISO date of the price
    source: str
    whole: Bill | None = None  # None: the run was on no cluster, or the hardware is no cloud's machine


def nodes(hardware: Hardware, workers: int) -> int:
    """Return how many nodes are rented. A node that is only partly used is paid for as a whole."""
    return math.ceil(workers / (hardware.workers_per_node or workers))


def usd(seconds: float, nodes: int, usd_per_hour: float) -> float:
    """Return the price of `nodes` nodes for `seconds`, billed by the second, in USD."""
    return seconds / 3600 * nodes * usd_per_hour


def usd_per_hour(experiment: Experiment) -> float | None:
    """Return what an hour of a run costs on demand, in USD, or None if the hardware has no price.

    On a cluster of a cloud's machines this includes workers, head, control plane, disks, and NAT gateway.
    """
    hardware, count = experiment.hardware, nodes(experiment.hardware, experiment.workers)
    if hardware.price is None:
        return None
    if hardware.machine is not None and experiment.cluster.name != "local":
        return sum(hourly(hardware, count, spot=False).values())
    return count * hardware.price.usd_per_hour


def bill(
    hardware: Hardware, workers: int, *, wall_s: float, provisioning_s: float | None = None
) -> Bill | None:
    """Return the whole bill of a run on a dedicated cluster. None without a cloud's machine and its price."""
    machine, price = hardware.machine, hardware.price
    if machine is None or price is None:
        return None
    beside = overhead(machine.provider)
    seconds = max(wall_s + (provisioning_s or 0.0), beside.minimum_s)
    count = nodes(hardware, workers)
    parts = {part: usd(seconds, 1, rate) for part, rate in hourly(hardware, count, spot=False).items()}
    total, spot = sum(parts.values()), None
    if price.usd_per_hour_spot is not None:
        spot = total - parts["workers"] + usd(seconds, count, price.usd_per_hour_spot)
    return Bill(
        usd=total,
        usd_spot=spot,
        parts=parts,
        provisioning_s=provisioning_s,
        billed_s=seconds,
        date=min(price.date, beside.date),
        source=f"{price.source}; {beside.source}",
        lacking=beside.lacking,
    )


def cost(
    hardware: Hardware,
    workers: int,
    *,
    wall_s: float,
    time_to_accuracy_s: float | None,
    clustered: bool = False,
    provisioning_s: float | None = None,
) -> Cost | None:
    """Return what a run cost on this hardware. If it has no price, return None, never 0.

    `clustered`: it ran on more than the machine of its command, so the whole bill is the cluster's.
    """
    price = hardware.price
    if price is None:
        return None
    count = nodes(hardware, workers)

    def of(seconds: float | None, usd_per_hour: float | None) -> float | None:
        if seconds is None or usd_per_hour is None:
            return None
        return usd(seconds, count, usd_per_hour)

    return Cost(
        nodes=count,
        wall_usd=usd(wall_s, count, price.usd_per_hour),
        wall_usd_spot=of(wall_s, price.usd_per_hour_spot),
        goal_usd=of(time_to_accuracy_s, price.usd_per_hour),
        goal_usd_spot=of(time_to_accuracy_s, price.usd_per_hour_spot),
        date=price.date,
        source=price.source,
        whole=bill(hardware, workers, wall_s=wall_s, provisioning_s=provisioning_s) if clustered else None,
    )

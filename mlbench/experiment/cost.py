"""What a run costs: nodes, hours and the price that its hardware profile states."""

import math
from dataclasses import dataclass

from mlbench.experiment.config import Hardware


@dataclass(frozen=True)
class Cost:
    """A run's price in USD; None where there is no spot price or the goal was not reached."""

    nodes: int
    wall_usd: float  # the whole wall clock, start-up included, at the on-demand price
    wall_usd_spot: float | None
    goal_usd: float | None  # from the first access to training data to the goal
    goal_usd_spot: float | None
    date: str  # ISO date of the price
    source: str


def nodes(hardware: Hardware, workers: int) -> int:
    """Return how many nodes are rented; a node that is only partly used is paid for as a whole."""
    return math.ceil(workers / (hardware.workers_per_node or workers))


def usd(seconds: float, nodes: int, usd_per_hour: float) -> float:
    """Return the price of `nodes` nodes for `seconds`, billed by the second, in USD."""
    return seconds / 3600 * nodes * usd_per_hour


def cost(hardware: Hardware, workers: int, *, wall_s: float, time_to_accuracy_s: float | None) -> Cost | None:
    """Return what a run cost on this hardware, or None where it has no price; it is never 0 then."""
    price = hardware.price
    if price is None:
        return None
    count = nodes(hardware, workers)

    def bill(seconds: float | None, usd_per_hour: float | None) -> float | None:
        if seconds is None or usd_per_hour is None:
            return None
        return usd(seconds, count, usd_per_hour)

    return Cost(
        nodes=count,
        wall_usd=usd(wall_s, count, price.usd_per_hour),
        wall_usd_spot=bill(wall_s, price.usd_per_hour_spot),
        goal_usd=bill(time_to_accuracy_s, price.usd_per_hour),
        goal_usd_spot=bill(time_to_accuracy_s, price.usd_per_hour_spot),
        date=price.date,
        source=price.source,
    )

"""Compute the energy of a run, and its carbon dioxide if the hardware profile states its grid."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlbench.config.experiment import Hardware

J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Energy:
    """Energy of all nodes from the first access to training data to the last validation's end, J.

    `parts` are those that every node could read, `gpus` and `cpu_packages`. The other numbers are of their
    sum. A missing part is unknown, not zero.
    """

    parts: dict[str, float]  # J
    joules: float
    goal_joules: float | None  # None: no goal was reached
    joules_per_sample: float | None
    carbon_g: float | None  # g of CO2 equivalents (None: the hardware profile states no grid)
    carbon_source: str | None  # of the grid's intensity, with its date


def energy(
    hardware: Hardware, nodes: Sequence[dict[str, float]], *, on_gpu: bool, reached: bool, samples: int
) -> Energy | None:
    """Return a run's energy from the parts of each node. None if the device that trained is unknown.

    `nodes` has every node once, however many ranks it had.
    """
    shared = set.intersection(*map(set, nodes)) if nodes else set()
    if ("gpus" if on_gpu else "cpu_packages") not in shared:
        return None
    parts = {part: math.fsum(node[part] for node in nodes) for part in sorted(shared)}
    joules = math.fsum(parts.values())
    grid = hardware.grid
    return Energy(
        parts=parts,
        joules=joules,
        goal_joules=joules if reached else None,
        joules_per_sample=joules / samples if samples else None,
        carbon_g=joules / J_PER_KWH * grid.g_per_kwh if grid else None,
        carbon_source=f"{grid.g_per_kwh:g} g/kWh, {grid.source}, {grid.date}" if grid else None,
    )

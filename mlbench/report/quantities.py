"""List the quantities of a point, once for tables, for files, and for MLflow's charts over workers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mlbench.analysis.bootstrap import Ratio
from mlbench.analysis.points import MedianEstimate
from mlbench.analysis.speedup import Speedup

OUTSIDE = ("loading", "validation", "report")  # what a run does between its batches
Value = MedianEstimate | Ratio | float | None


@dataclass(frozen=True)
class Quantity:
    """One quantity.

    - name: its column in files, with the unit, or "" if it is only shown.
    - unit: as `format.quantity` takes it.
    - metric: whether MLflow draws it over the number of workers.
    """

    name: str
    heading: str
    value: Callable[[Speedup], Value]
    unit: str
    metric: bool = True


def _share(phase: str, speedup: Speedup) -> float | None:
    """Return a phase's share of the time in batches, the mean over ranks and runs. None for one worker."""
    whole, seconds = math.fsum(speedup.point.phases.values()), speedup.point.phases.get(phase)
    return seconds / whole if whole and seconds is not None and speedup.point.workers > 1 else None


QUANTITIES = (
    Quantity("time_to_accuracy_s", "time to accuracy", lambda speedup: speedup.point.time_to_accuracy, "s"),
    Quantity("", "olympic mean", lambda speedup: speedup.point.olympic, "s"),
    Quantity("epochs", "epochs to the goal", lambda speedup: speedup.point.epochs, ""),
    Quantity("seconds_per_epoch", "time per epoch", lambda speedup: speedup.point.seconds_per_epoch, "s"),
    Quantity("outside_batches_per_epoch_s", "outside batches (per epoch)",
             lambda speedup: speedup.point.outside_per_epoch, "s", metric=False),
    Quantity("compute_s", "", lambda speedup: speedup.point.compute, "s"),
    Quantity("speedup", "speed-up", lambda speedup: speedup.total, "ratio"),
    Quantity("compute_speedup", "compute-only speed-up", lambda speedup: speedup.compute, "ratio"),
    Quantity("efficiency", "parallel efficiency", lambda speedup: speedup.efficiency, "share"),
    Quantity("price_index", "price index", lambda speedup: speedup.price_index, "ratio"),
    Quantity("exposed_communication", "exposed communication",
             lambda speedup: speedup.point.exposed, "share"),
    Quantity("", "of it wait for the slowest", partial(_share, "wait"), "share"),
    Quantity("", "of it transfer", partial(_share, "transfer"), "share"),
    Quantity("overlapped_communication", "overlapped communication",
             lambda speedup: speedup.point.overlapped, "share"),
    Quantity("samples_per_s", "samples / s", lambda speedup: speedup.point.samples_per_s, ""),
    Quantity("usd", "cost, on demand, training", lambda speedup: speedup.point.usd, "USD"),
    Quantity("usd_spot", "cost, spot, training", lambda speedup: speedup.point.usd_spot, "USD"),
    Quantity("usd_with_startup", "cost, on demand, with start-up",
             lambda speedup: speedup.point.usd_with_startup, "USD", metric=False),
    Quantity("usd_cluster", "cost, on demand, whole cluster",
             lambda speedup: speedup.point.usd_cluster, "USD", metric=False),
    Quantity("joules", "energy to the goal", lambda speedup: speedup.point.joules, "J"),
    Quantity("joules_per_sample", "energy per sample", lambda speedup: speedup.point.joules_per_sample, "J"),
)  # fmt: skip

"""When a machine did something else beside the run: what was measured, and from where on it counts."""

import statistics
from collections.abc import Iterator, Sequence

from mlbench.config.experiment import FrozenModel

OTHERS_SHARE = 0.10  # of the CPUs: workers that use them all are slowed down by about as much
STEAL_SHARE = 0.02  # of the CPUs; a hypervisor that is not overbooked steals less than 1 %
CALIBRATION_SHARE = 0.15  # by which a node may be slower or faster than the median of its point's runs
SPEED_SHARE = 0.05  # by which machines' speeds may differ where their times are compared (docs/statistics.md)
AT_BEGIN = "when the run began"  # ends the sentence about what disturbed the start-up alone
MIN_SECONDS = 0.5  # s; CPU time is counted in steps of 10 ms (Linux), so shorter spans tell nothing


class Interference(FrozenModel):
    """What else used the CPUs of one node over some time, as a mean."""

    seconds: float  # s that were looked at
    cpus: float  # CPUs that the run may use there
    others: float  # CPUs that processes which are not the run's used
    steal: float  # CPUs that the hypervisor gave to other machines


def disturbances(
    hostname: str, *, during: Interference | None, before: Interference | None = None, shared: bool = False
) -> Iterator[str]:
    """Yield why the times of a run on this node are not those of a quiet machine, one sentence each.

    - before: while the run was started; during: while it trained.
    - shared: whether another run of mlbench measured on the machine at the same time.
    """
    if shared:
        yield f"another run of mlbench measured on {hostname} at the same time"
    for interference, when in ((before, AT_BEGIN), (during, "while it trained")):
        if interference is None or interference.seconds < MIN_SECONDS:
            continue
        others = (interference.others, OTHERS_SHARE, "other processes used")
        for cpus, share, who in (others, (interference.steal, STEAL_SHARE, "the hypervisor took")):
            if cpus > share * interference.cpus:
                yield f"{who} {cpus:.2g} of the {interference.cpus:g} CPUs of {hostname} {when}"


def calibration_outliers(rates: Sequence[float | None]) -> list[float | None]:
    """Return by which share each rate differs from the median of all runs of its point, where it counts.

    `rates` has one calibration rate a run, e.g. the lowest over its nodes; None where it was not measured.
    The result is None for a run within CALIBRATION_SHARE of the median, and for points of fewer than three.
    """
    values = [rate for rate in rates if rate is not None and rate > 0]
    if len(values) < 3:  # of two that differ, nobody knows which one is off
        return [None] * len(rates)
    median = statistics.median(values)
    shares = [None if not rate else rate / median - 1 for rate in rates]
    return [share if share is not None and abs(share) > CALIBRATION_SHARE else None for share in shares]

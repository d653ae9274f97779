"""Detect other load on a machine during a run: what was measured, and from which threshold it counts."""

import statistics
from collections.abc import Iterator, Sequence

from mlbench.config.experiment import FrozenModel

OTHERS_SHARE = 0.10  # of the CPUs: workers that use them all are slowed down by about as much
STEAL_SHARE = 0.02  # of the CPUs, as a hypervisor that is not overbooked steals less than 1 %
THROTTLED_SHARE = 0.02  # of the CPUs, likewise without a quota, or below it
CALIBRATION_SHARE = 0.15  # by which a node may be slower or faster than the median of its point's runs
SPEED_SHARE = 0.05  # by which machines' speeds may differ if their times are compared (docs/statistics.md)
AT_BEGIN = "when the run began"  # ends the sentence about what disturbed the start-up alone
MIN_SECONDS = 0.5  # s, as CPU time is counted in steps of 10 ms (Linux), so shorter spans are unreliable


THROTTLED_SHARE = 0.02  # of the samples' time, as a machine with enough cooling and power never throttles
# Reasons of a lower clock that are no choice of model or owner: a power cap is how a GPU keeps to its limit.
THROTTLED = {
    "hardware_slowdown": "its hardware slowed it down",
    "software_thermal": "it was too hot",
    "hardware_thermal": "it was far too hot",
    "power_brake": "its machine lacked power",
}


class Interference(FrozenModel):
    """Other use of the CPUs of one node over some time, as a mean."""

    seconds: float  # s that were looked at
    cpus: float  # CPUs that the run may use there
    others: float  # CPUs that processes which are not the run's used
    steal: float  # CPUs that the hypervisor gave to other machines
    throttled: float = 0.0  # CPUs that a quota kept waiting (missing in records made before it was read)


class GpuUse(FrozenModel):
    """The use of one GPU while a run trained, from samples some seconds apart (None: unknown)."""

    index: int  # the driver's
    seconds: float  # s that the samples cover
    sm_clock_mean_mhz: float | None = None  # of samples under load
    sm_clock_min_mhz: float | None = None
    temperature_max_c: float | None = None
    throttled_s: dict[str, float] = {}  # s by reason
    pcie_generation: int | None = None  # under load
    pcie_width: int | None = None  # lanes
    # That the driver had given to the run's processes: NCCL's, cuDNN's and the context's, too. Largest sample
    process_memory_bytes: int | None = None


def disturbances(
    hostname: str,
    *,
    during: Interference | None,
    before: Interference | None = None,
    shared: bool = False,
    gpus: Sequence[GpuUse] = (),
) -> Iterator[str]:
    """Yield why the times of a run on this node are not those of a quiet machine, one sentence each.

    - before: while the run was started. during: while it trained.
    - shared: whether another run of mlbench measured on the machine at the same time.
    - gpus: the use of the run's GPUs while it trained.
    """
    if shared:
        yield f"another run of mlbench measured on {hostname} at the same time"
    for interference, when in ((before, AT_BEGIN), (during, "while it trained")):
        if interference is None or interference.seconds < MIN_SECONDS:
            continue
        others = (interference.others, OTHERS_SHARE, "other processes used")
        steal = (interference.steal, STEAL_SHARE, "the hypervisor took")
        throttled = (interference.throttled, THROTTLED_SHARE, "a CPU quota of the control group stopped")
        for cpus, share, who in (others, steal, throttled):
            if cpus > share * interference.cpus:
                yield f"{who} {cpus:.2g} of the {interference.cpus:g} CPUs of {hostname} {when}"
    for gpu in gpus:
        for reason, why in THROTTLED.items():
            seconds = gpu.throttled_s.get(reason, 0.0)
            if seconds > THROTTLED_SHARE * gpu.seconds:
                share = f"{seconds:.3g} of {gpu.seconds:.3g} s"
                yield f"GPU {gpu.index} of {hostname} lowered its clock for {share}, as {why}"


def calibration_outliers(rates: Sequence[float | None]) -> list[float | None]:
    """Return the share by which each rate differs from the median of all runs of its point, if it counts.

    `rates` has one calibration rate a run, e.g. the lowest over its nodes, or None if not measured. The
    result is None for a run within CALIBRATION_SHARE of the median, and for points of fewer than three.
    """
    values = [rate for rate in rates if rate is not None and rate > 0]
    if len(values) < 3:  # of two that differ, either one may be off
        return [None] * len(rates)
    median = statistics.median(values)
    shares = [None if not rate else rate / median - 1 for rate in rates]
    return [share if share is not None and abs(share) > CALIBRATION_SHARE else None for share in shares]

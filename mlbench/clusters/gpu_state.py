"""Read a GPU's limits, and its state while a run trained, from NVML (API reference, 2026).

A value is None if model, driver or permissions do not give it. Reasons for a lower clock come from samples,
so a reason that is shorter than the time between two samples may be missed.
"""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from mlbench.record.noise import GpuUse

LOADED = 50.0  # % of utilization; a sample at or above it counts as under load
# NVML's bits for the reasons of a low clock. Idle and "application clocks" are no throttling.
REASONS = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}


def nvml() -> Any:
    """Return the module of NVML's binding, or None if it is not installed."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    return pynvml


def ask(name: str, *arguments: Any) -> Any:
    """Return the value of an NVML function, named without `nvmlDevice`, or None if it fails."""
    import pynvml

    try:
        return getattr(pynvml, f"nvmlDevice{name}")(*arguments)
    except (pynvml.NVMLError, AttributeError):  # AttributeError: an older nvidia-ml-py
        return None


def limits(handle: Any) -> dict[str, Any]:
    """Return the fields of `record.Gpu` that hold a GPU's limits."""

    def told(name: str, *more: Any, of: Callable[[Any], Any] = lambda value: value) -> Any:
        value = ask(name, handle, *more)
        return None if value is None else of(value)

    links = [ask("GetNvLinkState", handle, link) for link in range(18)]
    return {
        "power_limit_w": told("GetPowerManagementLimit", of=lambda mw: mw / 1000),
        "power_limit_default_w": told("GetPowerManagementDefaultLimit", of=lambda mw: mw / 1000),
        "power_limit_max_w": told("GetPowerManagementLimitConstraints", of=lambda mw: mw[1] / 1000),
        "sm_clock_max_mhz": told("GetMaxClockInfo", 1),
        "memory_clock_max_mhz": told("GetMaxClockInfo", 2),
        "sm_clock_application_mhz": told("GetApplicationsClock", 1),
        "ecc": told("GetEccMode", of=lambda now: bool(now[0])),
        "mig": told("GetMigMode", of=lambda now: bool(now[0])),
        "persistence": told("GetPersistenceMode", of=bool),
        "pcie_generation_max": told("GetMaxPcieLinkGeneration"),
        "pcie_width_max": told("GetMaxPcieLinkWidth"),
        "nvlinks": sum(map(bool, links)) if any(link is not None for link in links) else None,
    }


class GpuWatch:
    """Adds up samples of one GPU: clocks under load, and seconds of each reason for a lower one.

    The memory is that of the processes `roots` and all below them.
    """

    def __init__(self, handle: Any, index: int, roots: Collection[int] = ()) -> None:
        self._handle, self._index, self._roots = handle, index, set(roots)
        self._memory: int | None = None  # bytes of the run's processes, at most
        self._clocks: list[float] = []
        self._throttled = Counter[str]()
        self._seconds, self._hottest = 0.0, None
        self._link: tuple[int, int] | None = None  # PCIe generation and width, under load: idle links sleep

    def sample(self, seconds: float) -> dict[str, float]:
        """Return the GPU's current state, by MLflow's names, and count it for `seconds`."""
        handle = self._handle
        rates, memory = ask("GetUtilizationRates", handle), ask("GetMemoryInfo", handle)
        power, clock = ask("GetPowerUsage", handle), ask("GetClockInfo", handle, 1)
        heat, reasons = ask("GetTemperature", handle, 0), ask("GetCurrentClocksThrottleReasons", handle)
        self._look_at_memory()
        values: dict[str, float] = {}
        if rates is not None:
            values["utilization_percentage"] = float(rates.gpu)
        if memory is not None:
            values["memory_usage_megabytes"] = int(memory.used) / 1e6
            values["memory_usage_percentage"] = int(memory.used) / int(memory.total) * 100
        if power is not None:
            values["power_usage_watts"] = power / 1000
        if clock is not None:
            values["sm_clock_megahertz"] = float(clock)
        if heat is not None:
            values["temperature_celsius"] = float(heat)
            self._hottest = max(float(heat), self._hottest or 0.0)
        self._seconds += seconds
        for bit, reason in REASONS.items():
            if (reasons or 0) & bit:
                self._throttled[reason] += seconds  # type: ignore[assignment]  # a Counter of seconds
        if values.get("utilization_percentage", 0.0) >= LOADED:
            self._clocks += [] if clock is None else [float(clock)]
            link = ask("GetCurrPcieLinkGeneration", handle), ask("GetCurrPcieLinkWidth", handle)
            self._link = None if None in link else link
        return values

    def use(self) -> GpuUse:
        """Return the use so far."""
        self._look_at_memory()
        clocks, link = self._clocks, self._link or (None, None)
        return GpuUse(
            index=self._index,
            seconds=self._seconds,
            sm_clock_mean_mhz=sum(clocks) / len(clocks) if clocks else None,
            sm_clock_min_mhz=min(clocks, default=None),
            temperature_max_c=self._hottest,
            throttled_s=dict(self._throttled),
            pcie_generation=link[0],
            pcie_width=link[1],
            process_memory_bytes=self._memory,
        )

    def _look_at_memory(self) -> None:
        """Count the memory that the driver gave to the run's processes. In a pod it may not show them."""
        from mlbench.clusters.processes import lineage  # imported here: a plan needs no psutil

        found = ask("GetComputeRunningProcesses", self._handle) or ()
        used = [each.usedGpuMemory for each in found if self._roots & lineage(each.pid)]
        if used and None not in used:
            self._memory = max(sum(used), self._memory or 0)

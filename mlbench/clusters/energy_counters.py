"""Read the energy in joules of a node's GPUs and CPU packages from their hardware counters.

- GPUs: NVML's total energy since the driver was loaded, mJ (NVML API reference, 2026: Volta and later).
- CPU packages: Linux's power capping framework, uJ (Documentation/power/powercap, kernel 6.x). A package's
  counter wraps within half an hour of full load, so `read` must be called every few minutes. Memory and other
  zones are left out: their contents depend on the model.

Many machines do not allow users to read them (virtual machines; since 2020 only root reads CPU counters).
Such a part is absent and not zero. All CPU packages of a node count. Of its GPUs those count on which the run
computes: on a shared machine the rest belongs to other users.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlbench.clusters import gpu_state, node

POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """The energy of this node since the meter was made. Several threads may read it.

    - gpus: the UUIDs of those that count. None: all that the driver shows.
    """

    def __init__(
        self, powercap: Path = POWERCAP, nvml: Any = None, *, gpus: Sequence[str] | None = None
    ) -> None:
        # Zones of whole packages, AMD's too. intel-rapl-mmio shows the same ones again.
        self._zones = [
            zone
            for zone in sorted(powercap.glob("intel-rapl:*"))
            if (node.kernel_text(zone / "name") or "").startswith("package")
        ]
        self._nvml, self._gpus = _gpus(nvml, gpus)
        self._last = {zone: _number(zone / "energy_uj") for zone in self._zones}
        self._used_uj = 0
        self._lock = threading.Lock()
        self._packages_readable = bool(self._zones) and None not in self._last.values()
        self._begin_mj = self._gpu_mj()

    def read(self) -> dict[str, float]:
        """Return the joules by part, `gpus` and `cpu_packages`, if all counters of the part can be read."""
        joules = {}
        now_mj = self._gpu_mj()
        if self._begin_mj is not None and now_mj is not None:
            joules["gpus"] = (now_mj - self._begin_mj) / 1e3
        with self._lock:
            self._packages_readable = self._packages_readable and all(map(self._advance, self._zones))
            if self._packages_readable:
                joules["cpu_packages"] = self._used_uj / 1e6
        return joules

    def _advance(self, zone: Path) -> bool:
        """Add the energy of a package since the last call. Return whether it could be read."""
        last, now = self._last[zone], _number(zone / "energy_uj")
        if last is None or now is None:
            return False
        wrap = _number(zone / "max_energy_range_uj") if now < last else 0
        if wrap is None:
            return False
        self._used_uj += now - last + wrap
        self._last[zone] = now
        return True

    def _gpu_mj(self) -> int | None:
        """Return the sum over the GPUs that count, or None if there is none or one has no counter."""
        if not self._gpus:
            return None
        try:
            return sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) for gpu in self._gpus)
        except self._nvml.NVMLError:
            return None


def _gpus(nvml: Any, uuids: Sequence[str] | None) -> tuple[Any, list[Any]]:
    """Return NVML and a handle a GPU, or none if one is unreachable (a part of a GPU has no counter)."""
    nvml = nvml or gpu_state.nvml()
    if nvml is None:
        return None, []
    try:
        nvml.nvmlInit()
        if uuids is not None:
            return nvml, [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        return nvml, [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return nvml, []


def _number(path: Path) -> int | None:
    text = node.kernel_text(path) or ""
    return int(text) if text.isdigit() else None

"""What NVML tells of a GPU, on a played driver: limits once, and what it did while a run trained."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest
from commands import until

from mlbench.clusters import gpu_state
from mlbench.clusters import node as machine
from mlbench.clusters.monitor import NodeMonitor

LIMITS = {
    "GetPowerManagementLimit": 500_000,  # mW
    "GetPowerManagementDefaultLimit": 700_000,
    "GetPowerManagementLimitConstraints": (200_000, 700_000),
    "GetEccMode": (1, 1),
    "GetMigMode": (0, 0),
    "GetPersistenceMode": 1,
    "GetMaxPcieLinkGeneration": 5,
    "GetMaxPcieLinkWidth": 16,
}
CLOCKS = {"GetMaxClockInfo": {1: 1980, 2: 2619}, "GetApplicationsClock": {1: 1755}}  # MHz


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what NVML answers, by function: tests change it; what is not there is not supported."""
    answers: dict[str, Any] = {name: lambda *_, value=value: value for name, value in LIMITS.items()}
    answers |= {name: lambda _, kind, values=values: values[kind] for name, values in CLOCKS.items()}
    answers["GetNvLinkState"] = lambda _, link: int(link < 12)

    def asked(name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            if name not in answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answers[name](*arguments)

        return ask

    for name in dir(pynvml):
        if name.startswith("nvmlDeviceGet"):
            monkeypatch.setattr(pynvml, name, asked(name.removeprefix("nvmlDevice")))
    return answers


def test_limits_are_the_drivers_in_watts_and_megahertz(played: dict[str, Any]) -> None:
    assert gpu_state.limits(0) == {
        "power_limit_w": 500.0,
        "power_limit_default_w": 700.0,
        "power_limit_max_w": 700.0,
        "sm_clock_max_mhz": 1980,
        "memory_clock_max_mhz": 2619,
        "sm_clock_application_mhz": 1755,
        "ecc": True,
        "mig": False,
        "persistence": True,
        "pcie_generation_max": 5,
        "pcie_width_max": 16,
        "nvlinks": 12,
    }


def test_what_a_driver_does_not_tell_is_none(played: dict[str, Any]) -> None:
    played.clear()
    assert set(gpu_state.limits(0).values()) == {None}
    watch = gpu_state.GpuWatch(0, 0)
    assert watch.sample(5.0) == {}
    use = watch.use()
    assert use.seconds == 5.0 and use.throttled_s == {} and use.sm_clock_mean_mhz is None


def test_reasons_add_up_as_seconds_and_clocks_count_under_load(played: dict[str, Any]) -> None:
    states = [  # utilization, SM clock, reasons, seconds
        (0, 345, pynvml.nvmlClocksThrottleReasonGpuIdle, 1.0),
        (99, 1980, 0, 2.0),
        (99, 1500, pynvml.nvmlClocksThrottleReasonSwPowerCap, 4.0),
        (98, 900, pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | 8, 5.0),
    ]
    watch = gpu_state.GpuWatch(0, 3)
    for load, clock, reasons, seconds in states:
        played["GetUtilizationRates"] = lambda _, load=load: SimpleNamespace(gpu=load)
        played["GetClockInfo"] = lambda _, kind, clock=clock: {1: clock}[kind]
        played["GetCurrentClocksThrottleReasons"] = lambda _, reasons=reasons: reasons
        played["GetTemperature"] = lambda _, sensor, clock=clock: 60 + clock // 100
        played["GetCurrPcieLinkGeneration"] = lambda _, load=load: 5 if load else 1
        played["GetCurrPcieLinkWidth"] = lambda _: 8
        assert watch.sample(seconds)["sm_clock_megahertz"] == clock
    use = watch.use()
    assert use.index == 3 and use.seconds == 12.0
    assert use.throttled_s == {"power_cap": 4.0, "software_thermal": 5.0, "hardware_slowdown": 5.0}
    assert use.sm_clock_mean_mhz == pytest.approx((1980 + 1500 + 900) / 3) and use.sm_clock_min_mhz == 900
    assert use.temperature_max_c == 79.0 and (use.pcie_generation, use.pcie_width) == (5, 8)


def test_a_run_counts_its_own_gpus_alone(played: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_handles", lambda: ("first", "second"))
    played["GetUUID"] = lambda handle: f"GPU-{handle}"
    played["GetCurrentClocksThrottleReasons"] = lambda handle: 0x40 if handle == "first" else 0
    monitor = NodeMonitor(gpus=["GPU-second"])
    monitor.read()
    (use,) = monitor.gpu_use()
    assert use.index == 1 and use.throttled_s == {} and use.seconds > 0
    everything = NodeMonitor()
    everything.read()
    assert [list(each.throttled_s) for each in everything.gpu_use()] == [["hardware_thermal"], []]


CHILD = "import subprocess, sys; subprocess.call([sys.executable, '-c', 'input()'])"


def test_the_memory_of_a_run_is_what_the_driver_gave_its_processes_and_their_children_at_most(
    played: dict[str, Any],
) -> None:
    """torch's allocator does not know of NCCL, cuDNN and the context; another program's is not the run's."""
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE) as rank:
        root = psutil.Process(rank.pid)
        until(root.children)
        (child,) = root.children()
        held = {rank.pid: 3_000, child.pid: 500, os.getpid(): 10**9, 2**22 + 1: 10**9}
        played["GetComputeRunningProcesses"] = lambda _: [
            SimpleNamespace(pid=pid, usedGpuMemory=bytes_) for pid, bytes_ in held.items()
        ]
        watch = gpu_state.GpuWatch(0, 0, roots=[rank.pid])
        watch.sample(5.0)
        held[rank.pid] = 1_000
        assert watch.use().process_memory_bytes == 3_500, "the most counts"
        held[child.pid] = 9_000
        assert watch.use().process_memory_bytes == 10_000, "the run's last moment is a sample, too"
        held[rank.pid] = None  # type: ignore[assignment]  # without the permission to see it
        fresh = gpu_state.GpuWatch(0, 0, roots=[rank.pid])
        assert fresh.use().process_memory_bytes is None
        assert gpu_state.GpuWatch(0, 0, roots=[2**22 + 2]).use().process_memory_bytes is None
        assert rank.stdin is not None
        rank.stdin.close()


def test_a_monitor_counts_the_memory_of_the_processes_that_it_is_given(
    played: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "gpu_handles", lambda: ("only",))
    played["GetComputeRunningProcesses"] = lambda _: [SimpleNamespace(pid=os.getpid(), usedGpuMemory=7)]
    assert [use.process_memory_bytes for use in NodeMonitor().gpu_use()] == [7]
    assert [use.process_memory_bytes for use in NodeMonitor(pids=[2**22 + 2]).gpu_use()] == [None]

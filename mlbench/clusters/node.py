"""Describe a machine: processors, memory, GPUs and their drivers, and causes of varying times.

This module alone reads them from the kernel, psutil and NVML. A value that cannot be read is None, never a
guess.
"""

import math
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlbench.clusters import gpu_state
from mlbench.config import libraries
from mlbench.record import provenance, startup_code
from mlbench.record.record import Gpu, Node

ROOT = Path("/")  # tests use another one, with separate /proc and /sys
DRIVER = "proc/driver/nvidia/version"  # of a loaded kernel module
# Distance of two places of code at which a call becomes slower (docs/measurements/performance.md).
FAR_BYTES = 2**32
UNLIMITED = 2**60  # bytes; version 1 control groups write "no limit" as a number near 2^63
# bytes of Ray's object store, which a run hardly uses. Ray needs 75 MiB at least and would take 30 % of the
# memory. Every worker maps it, and torch, imported later, would be loaded below it. A store of more than 4
# GiB would put torch too far from Python's code (docs/measurements/performance.md).
OBJECT_STORE_BYTES = 100_000_000


def describe() -> Node:
    """Return this machine's shape as this process sees it. Sizes are in bytes.

    `usable_cpus` is the number of logical CPUs that affinity and control groups allow, at least 1. `warnings`
    leaves out the load, because the run itself makes one.
    """
    import psutil

    gpus_here, gpu_error = gpus()
    quota, memory_limit = _cgroup_limits()
    cuda, nccl = _cuda_versions() if gpus_here else (None, None)
    return Node(
        hostname=platform.node(),
        os=_os_name(),
        kernel=platform.release(),
        architecture=platform.machine(),
        python=platform.python_version(),
        cpu_model=_cpu_model(),
        physical_cpus=psutil.cpu_count(logical=False),
        logical_cpus=psutil.cpu_count(),
        affinity_cpus=len(os.sched_getaffinity(0)),
        cpu_quota=quota,
        usable_cpus=usable_cpus(),
        memory_bytes=psutil.virtual_memory().total,
        memory_limit_bytes=memory_limit,
        gpus=gpus_here,
        gpu_error=gpu_error,
        sources=provenance.sources(),
        rdma_devices=rdma_devices(),
        cuda=cuda,
        nccl=nccl,
        environment=provenance.environment(),
        startup_code=startup_code.files(),
        warnings=warnings(),
    )


def usable_cpus() -> int:
    """Return the CPUs that affinity and control groups leave to this process, rounded down."""
    quota, _ = _cgroup_limits()
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), quota or math.inf)))


def warnings() -> list[str]:
    """Return one sentence for each property of this machine that makes times vary at any load."""
    sentences = []
    cpu = ROOT / "sys/devices/system/cpu"
    governors = {kernel_text(path) for path in cpu.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    slow = sorted(name for name in governors - {"performance"} if name)
    if slow:
        sentences.append(f"the CPU frequency governor is {', '.join(slow)}, not performance")
    if kernel_text(cpu / "intel_pstate/no_turbo") == "0" or kernel_text(cpu / "cpufreq/boost") == "1":
        sentences.append("turbo is on: the clock frequency depends on temperature and on other cores")
    if kernel_text(cpu / "smt/active") == "1":
        sentences.append("SMT is on: two logical CPUs share a core")
    store = _object_store_between()
    if store:
        sentences.append(
            f"Ray's object store of {store / 2**30:.1f} GiB lies between torch's code and Python's in a "
            "worker's addresses, which makes short steps slower: start Ray with "
            f"--object-store-memory={OBJECT_STORE_BYTES}"
        )
    return sentences


def _object_store_between() -> int:
    """Return the bytes of Ray's object store if it keeps torch's code far from the C library's, else 0.

    Far in this process's addresses, proc_pid_maps(5).
    """
    places: dict[str, int] = {}  # first address, by the file's name
    stores = []
    for line in (kernel_text(ROOT / "proc/self/maps") or "").splitlines():
        addresses, _, rest = line.partition(" ")
        first, last = (int(address, 16) for address in addresses.split("-"))
        name = rest.rpartition("/")[2]
        places.setdefault(name, first)
        if name.startswith("plasma"):  # Ray's name for it
            stores.append((first, last))
    if not {"libtorch_cpu.so", "libc.so.6"} <= places.keys():
        return 0
    low, high = sorted((places["libtorch_cpu.so"], places["libc.so.6"]))
    return sum(last - first for first, last in stores if low < first < high) if high - low > FAR_BYTES else 0


def gpu_handles() -> tuple[Any, ...]:
    """Return NVML's handle of each GPU, or none without driver or binding.

    Raises NVMLError for a broken driver.
    """
    pynvml = gpu_state.nvml()
    if pynvml is None:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if _code(error) == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return ()
        raise
    return tuple(pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount()))


def gpus() -> tuple[list[Gpu], str | None]:
    """Return all NVIDIA GPUs of the machine, and why there are none although a driver is installed."""
    pynvml = gpu_state.nvml()
    if pynvml is None:
        missing = "nvidia-ml-py is not installed"
        return [], f"{missing}: {libraries.command('pynvml')}" if (ROOT / DRIVER).exists() else None
    try:
        handles = gpu_handles()
        driver = pynvml.nvmlSystemGetDriverVersion() if handles else None
        devices = [
            Gpu(
                name=pynvml.nvmlDeviceGetName(handle),
                memory_bytes=_memory(handle),
                driver=driver,
                **gpu_state.limits(handle),
            )
            for handle in handles
        ]
    except pynvml.NVMLError as error:
        return [], str(error)
    return devices, None


def rdma_devices() -> list[str]:
    """Return the kernel's names of the adapters for RDMA: InfiniBand, RoCE, EFA (kernel 6.x, sysfs ABI)."""
    return sorted(path.name for path in (ROOT / "sys/class/infiniband").glob("*"))


def _memory(handle: Any) -> int | None:
    """Return a GPU's memory in bytes, or None if it has no separate memory (GH200 and others)."""
    import pynvml

    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError as error:
        if _code(error) == pynvml.NVML_ERROR_NOT_SUPPORTED:
            return None
        raise


def _code(error: Any) -> int:
    return error.value


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _cpu_model() -> str | None:
    """Return the model's name, or None for processors without one in /proc/cpuinfo (ARM)."""
    match = re.search(r"^model name\s*:(.*)", kernel_text(ROOT / "proc/cpuinfo") or "", re.MULTILINE)
    return match[1].strip() if match else None


def _cuda_versions() -> tuple[str | None, str | None]:
    """Return the versions of CUDA and NCCL with which torch was built."""
    import torch
    from torch.cuda import nccl

    if torch.version.cuda is None or not torch.distributed.is_nccl_available():
        return torch.version.cuda, None
    return torch.version.cuda, ".".join(map(str, nccl.version()))


def process_limit() -> tuple[int, int] | None:
    """Return the limit of processes and threads of the tightest control group, and their current number.

    None if no group has a limit.
    """
    groups = [
        (int(limit), int(kernel_text(folder / "pids.current") or 0))
        for folder in _groups("pids")
        if (limit := kernel_text(folder / "pids.max") or "max") != "max"
    ]
    return min(groups, key=lambda group: group[0] - group[1], default=None)


def oom_kills() -> int | None:
    """Return how many processes of this one's control group the kernel has killed for lack of memory.

    None if the kernel does not report it.
    """
    for folder in _groups("memory"):
        # version 2, then 1
        text = kernel_text(folder / "memory.events") or kernel_text(folder / "memory.oom_control")
        if text is not None:
            return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))
    return None


def throttled_s() -> float:
    """Return for how long CPU quotas have kept this process's control group waiting, in s of CPUs.

    It is the longest wait of the group and the groups above it, and 0 without a quota.
    """
    waits = [0.0]
    for folder in _groups("cpu"):
        stat = dict(line.split() for line in (kernel_text(folder / "cpu.stat") or "").splitlines())
        waits.append(int(stat.get("throttled_usec", 0)) / 1e6 or int(stat.get("throttled_time", 0)) / 1e9)
    return max(waits)


def memory_limit() -> int | None:
    """Return the memory limit of this process's control group in bytes, or None without a limit."""
    return _cgroup_limits()[1]


def _cgroup_limits() -> tuple[float | None, int | None]:
    """Return the CPU quota in CPUs and the memory limit in bytes, the tightest on the way up."""
    quotas: list[float] = []
    limits: list[int] = []
    for folder in _groups("cpu"):
        quota, _, period = (kernel_text(folder / "cpu.max") or "max").partition(" ")  # version 2
        if quota == "max":
            quota = kernel_text(folder / "cpu.cfs_quota_us") or -1
            period = kernel_text(folder / "cpu.cfs_period_us") or 1
        quotas += [] if int(quota) < 0 else [int(quota) / int(period)]
    for folder in _groups("memory"):
        limit = kernel_text(folder / "memory.max") or kernel_text(folder / "memory.limit_in_bytes") or "max"
        limits += [] if limit == "max" or int(limit) >= UNLIMITED else [int(limit)]
    return min(quotas, default=None), min(limits, default=None)


def _groups(controller: str) -> Iterator[Path]:
    """Yield this process's control group of a controller and those above it.

    Both versions of control groups, Linux: Documentation/admin-guide/cgroup-{v1,v2}.
    """
    for line in (kernel_text(ROOT / "proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if not names or controller in names.split(","):
            mount = ROOT / "sys/fs/cgroup" / (controller if names else "")  # without names: version 2
            folder = mount / path.lstrip("/")
            # inside a container only the mount may exist
            yield from (group for group in (folder, *folder.parents) if group.is_relative_to(mount))


def kernel_text(path: Path) -> str | None:
    """Return the text of a kernel file, or None if it is missing or may not be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None

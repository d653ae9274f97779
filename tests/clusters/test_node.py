"""What a machine is, against the system's own tools and against made-up kernels and drivers."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest

from mlbench.clusters import node
from mlbench.clusters.monitor import NodeMonitor


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Let the module see an empty file system; return a function that fills it."""
    monkeypatch.setattr(node, "ROOT", tmp_path)

    def write(files):
        for path, text in files:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text + "\n")

    return write


def test_node_agrees_with_the_systems_own_tools():
    host = node.describe()
    assert host.hostname == os.uname().nodename
    assert host.kernel == os.uname().release
    assert host.python == ".".join(map(str, sys.version_info[:3]))
    assert host.logical_cpus == os.cpu_count()
    assert host.affinity_cpus == len(os.sched_getaffinity(0))
    assert host.affinity_cpus and host.logical_cpus
    assert 1 <= host.usable_cpus <= host.affinity_cpus <= host.logical_cpus
    assert host.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_affinity_bounds_the_usable_cpus():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from mlbench.clusters import node; print(node.usable_cpus())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "1", answer.stderr


@pytest.mark.parametrize(
    ("files", "quota", "limit"),
    [
        ([], None, None),
        ([("proc/self/cgroup", "0::/a/b")], None, None),
        (  # version 2: the tightest group on the way up counts
            [
                ("proc/self/cgroup", "0::/a/b"),
                ("sys/fs/cgroup/a/b/cpu.max", "max 100000"),
                ("sys/fs/cgroup/a/cpu.max", "250000 100000"),
                ("sys/fs/cgroup/a/b/memory.max", "4096"),
                ("sys/fs/cgroup/a/memory.max", "max"),
                ("sys/fs/cgroup/memory.max", "1024"),
            ],
            2.5,
            1024,
        ),
        (  # version 2 in a container: the path is the host's, the limits lie at the mount
            [
                ("proc/self/cgroup", "0::/../kubepods/pod1"),
                ("sys/fs/cgroup/cpu.max", "50000 100000"),
                ("sys/fs/cgroup/memory.max", "2048"),
            ],
            0.5,
            2048,
        ),
        (  # version 1, with several controllers on one mount
            [
                ("proc/self/cgroup", "3:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n1:name=systemd:/"),
                ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "300000"),
                ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
                ("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "8192"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ],
            3.0,
            8192,
        ),
        (  # version 1 without limits
            [
                ("proc/self/cgroup", "3:cpu:/\n2:memory:/"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ],
            None,
            None,
        ),
    ],
    ids=["none", "unlimited", "v2", "v2-container", "v1", "v1-unlimited"],
)
def test_control_groups_bound_cpus_and_memory(root, monkeypatch, files, quota, limit):
    root(files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    host = node.describe()
    assert (host.cpu_quota, host.memory_limit_bytes) == (quota, limit)
    assert host.usable_cpus == {None: 8, 2.5: 2, 0.5: 1, 3.0: 3}[quota]


@pytest.mark.parametrize(
    ("group", "path"),
    [
        ("0::/a", "sys/fs/cgroup/a/memory.events"),
        ("4:memory:/a", "sys/fs/cgroup/memory/a/memory.oom_control"),
    ],
)
def test_processes_that_the_kernel_killed_for_memory_are_counted(root, group, path):
    assert node.oom_kills() is None
    root([("proc/self/cgroup", group), (path, "under_oom 0\noom_kill 3")])
    assert node.oom_kills() == 3


@pytest.mark.parametrize(
    ("group", "path", "text"),
    [
        ("0::/a", "sys/fs/cgroup/a/cpu.stat", "usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000"),
        ("4:cpu,cpuacct:/a", "sys/fs/cgroup/cpu/a/cpu.stat", "nr_throttled 3\nthrottled_time 2500000000"),
        ("0::/", "sys/fs/cgroup/cpu.stat", "throttled_usec 2500000"),  # as a container sees its own
    ],
)
def test_the_time_for_which_a_quota_kept_threads_waiting_is_read(root, group, path, text):
    assert node.throttled_s() == 0
    root([("proc/self/cgroup", group), (path, text)])
    assert node.throttled_s() == 2.5


def test_the_processors_name_is_the_kernels(root):
    assert node.describe().cpu_model is None
    root([("proc/cpuinfo", "processor\t: 0\nmodel\t\t: 79\nmodel name\t: Xeon: E5 @ 2.20GHz")])
    assert node.describe().cpu_model == "Xeon: E5 @ 2.20GHz"


class Driver:
    """NVML with two GPUs, or with what its start raises."""

    def __init__(self, monkeypatch, failure=None):
        self.failure = failure
        for name in ("Init", "SystemGetDriverVersion", "DeviceGetCount", "DeviceGetHandleByIndex"):
            monkeypatch.setattr(pynvml, f"nvml{name}", getattr(self, name))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetName", ["Tesla T4", "NVIDIA GH200"].__getitem__)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", self.memory)

    def Init(self):
        if self.failure is not None:
            raise pynvml.NVMLError(self.failure)

    def SystemGetDriverVersion(self):
        return "550.54.15"

    def DeviceGetCount(self):
        return 2

    def DeviceGetHandleByIndex(self, index):
        return index

    def memory(self, index):
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=15360 * 2**20)


def test_gpus_are_what_the_driver_lists(monkeypatch):
    Driver(monkeypatch)
    gpus, error = node.gpus()
    assert [gpu.model_dump(exclude_none=True) for gpu in gpus] == [
        {"name": "Tesla T4", "memory_bytes": 15360 * 2**20, "driver": "550.54.15"},
        {"name": "NVIDIA GH200", "driver": "550.54.15"},
    ]
    assert error is None and len(node.gpu_handles()) == 2


def test_a_driver_that_does_not_start_is_told_and_a_missing_one_is_not(monkeypatch):
    Driver(monkeypatch, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    host = node.describe()
    assert host.gpus == [] and host.gpu_error == "Driver Not Loaded"
    with NodeMonitor() as monitor:  # and the samples go on without GPUs
        assert not any(name.startswith("gpu") for name in monitor.read())
    Driver(monkeypatch, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert node.describe().gpu_error is None


@pytest.mark.gpu
def test_a_real_gpu_has_a_driver_memory_cuda_and_nccl():
    torch = pytest.importorskip("torch")
    host = node.describe()
    assert host.gpus and (host.gpus[0].memory_bytes or 0) > 2**30
    assert host.gpus[0].driver and host.cuda == torch.version.cuda
    assert host.nccl is None or host.nccl[0].isdigit()


def test_a_machine_of_one_speed_has_no_warnings(root, monkeypatch):
    """Nor has one whose load average is that of the run before this one."""
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    root(
        [
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"),
            ("sys/devices/system/cpu/intel_pstate/no_turbo", "1"),
            ("sys/devices/system/cpu/smt/active", "0"),
        ]
    )
    assert node.warnings() == []


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("cpu1/cpufreq/scaling_governor", "powersave", "powersave, not performance"),
        ("intel_pstate/no_turbo", "0", "turbo is on"),
        ("cpufreq/boost", "1", "turbo is on"),
        ("smt/active", "1", "SMT is on"),
    ],
)
def test_each_source_of_noise_is_one_sentence(root, path, text, sentence):
    root(
        [
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"),
            (f"sys/devices/system/cpu/{path}", text),
        ]
    )
    (warning,) = node.describe().warnings
    assert sentence in warning
    assert node.warnings() == [warning]


@pytest.mark.parametrize(
    ("torch", "store", "libc", "warnings"),
    [
        ("7f1a3ca00000", "7f1a51500000-7f1c10000000", "7f1c63c1e000", 1),  # Ray 2.60's own size
        ("7fef89600000", "7fefa0000000-7fefa6000000", "7feff6e1e000", 0),  # 100 MB
        ("7f1a3ca00000", "7f1851500000-7f1a10000000", "7f1c63c1e000", 0),  # torch was imported first
    ],
)
def test_a_large_object_store_above_torch_is_a_warning(root, torch, store, libc, warnings):
    lines = (
        f"{torch}-7fffffffffff r--p 00000000 08:02 173521 /venv/lib/torch/lib/libtorch_cpu.so",
        f"{store} rw-s 00000000 00:1a 99 /dev/shm/plasmaBxkeyt (deleted)",
        f"{libc}-7fffffffffff r--p 00000000 08:02 8231 /usr/lib/x86_64-linux-gnu/libc.so.6",
        "7ffc54a00000-7ffc54a21000 rw-p 00000000 00:00 0 [stack]",
    )
    root([("proc/self/maps", "\n".join(lines))])
    messages = node.warnings()
    assert len(messages) == warnings
    assert all("7.0 GiB lies" in message for message in messages)

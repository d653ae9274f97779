"""What a node does while it trains: CPU, memory, network and GPUs, sampled from beside the training loop."""

import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import psutil

from mlbench import clock
from mlbench.clusters import node as machine
from mlbench.clusters.energy_counters import EnergyMeter
from mlbench.clusters.processes import below, of_session, session_of
from mlbench.record.noise import Interference

FIRST_S = 1.0  # s to the first sample; each pause is twice the one before until the interval is reached
INTERVAL_S = 5.0  # s between samples
COARSEST_S = 60.0  # s between them at most: 262 kJ, a package's whole counter, last 11 minutes at 400 W
MOST_SAMPLES = 120  # kept between two validations, then every second one, and fewer from there on
MEGA = 1e6  # bytes; MLflow's megabytes are decimal


class NodeMonitor:
    """Samples this node in a thread, one monitor a node; as a context manager it runs until the block ends.

    A sample is flat: `wall` (s since 1970), `node` (as given: None where the run has one node, else e.g.
    node_0 as MLflow names them), and numbers under MLflow's own names of system metrics. Where MLflow counts
    megabytes since the start, `network_..._bytes_per_s` is the rate since the sample before, over all
    interfaces, loopback included. `meter` is read along.
    """

    def __init__(
        self, interval_s: float = INTERVAL_S, *, node: str | None = None, meter: EnergyMeter | None = None
    ) -> None:
        import pynvml

        self._interval_s = interval_s
        self._node, self._meter = node, meter
        self._gpus: tuple[Any, ...] = ()
        with suppress(pynvml.NVMLError):  # node.describe says why there are none
            self._gpus = machine.gpu_handles()
        self._samples: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system", daemon=True)
        psutil.cpu_percent()  # the first call has nothing to compare with and returns 0
        self._network = clock.monotonic(), psutil.net_io_counters()

    def __enter__(self) -> "NodeMonitor":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ending.set()
        self._thread.join()

    def drain(self) -> list[dict[str, Any]]:
        """Return the samples since the last call."""
        with self._lock:
            samples, self._samples = self._samples, []
        return samples

    def _run(self) -> None:
        with suppress(OSError):
            psutil.cpu_percent()  # psutil compares with the last call of the same thread
            self._network = clock.monotonic(), psutil.net_io_counters()
        pause = FIRST_S
        while not self._ending.wait(min(pause, self._interval_s)):
            pause *= 2
            if self._meter is not None:
                self._meter.read()  # or a counter could wrap twice unseen
            with suppress(OSError), self._lock:  # e.g. too many open files: this sample is missing
                self._samples.append(self.read())
                if len(self._samples) >= MOST_SAMPLES:  # hours between validations: a coarser picture does
                    self._samples = self._samples[1::2]
                    self._interval_s = min(2 * self._interval_s, COARSEST_S)

    def read(self) -> dict[str, Any]:
        """Return the node's state now; rates and CPU since the sample before."""
        memory = psutil.virtual_memory()
        (before, old), (now, new) = self._network, (clock.monotonic(), psutil.net_io_counters())
        self._network = now, new
        seconds = now - before
        sample = {
            "wall": clock.wall(),
            "node": self._node,
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / MEGA,
            "system_memory_usage_percentage": memory.used / memory.total * 100,
        }
        if old is not None and new is not None:  # None: a container without any interface
            sample["network_receive_bytes_per_s"] = (new.bytes_recv - old.bytes_recv) / seconds
            sample["network_transmit_bytes_per_s"] = (new.bytes_sent - old.bytes_sent) / seconds
        for index, handle in enumerate(self._gpus):
            sample |= {f"gpu_{index}_{name}": value for name, value in _gpu(handle).items()}
        return sample


class CpuUse:
    """Tells what other processes, and other machines of the hypervisor, take of this one's CPUs.

    `own` returns the processes that are the run's; whatever else the kernel counts is others'. Interrupts are
    nobody's. It walks all processes twice, 10 to 30 ms each (130 processes), so not while a batch is timed.
    """

    def __init__(self, own: Callable[[], Iterable[psutil.Process]]) -> None:
        self._own = own
        self._begin = clock.monotonic(), *_cpu_seconds(), _cpu_seconds_of(own())

    def interference(self) -> Interference:
        """Return the means since this object was made."""
        now = clock.monotonic(), *_cpu_seconds(), _cpu_seconds_of(self._own())
        seconds, busy, steal, own = (after - before for before, after in zip(self._begin, now, strict=True))
        seconds = max(seconds, 1e-9)
        return Interference(
            seconds=seconds,
            cpus=float(len(os.sched_getaffinity(0))),
            others=max(0.0, busy - max(0.0, own)) / seconds,
            steal=max(0.0, steal) / seconds,
        )


def own_processes(roots: Iterable[int] = ()) -> set[psutil.Process]:
    """Return this process, those with a pid of `roots`, Ray's processes that it is part of, and all below."""
    with suppress(psutil.Error):
        sessions = {session_of(parent) for parent in psutil.Process().parents() if parent.name() == "raylet"}
        return below({os.getpid(), *roots}).union(*(of_session(session) for session in sessions if session))
    return below({os.getpid(), *roots})


def _cpu_seconds() -> tuple[float, float]:
    """Return what the CPUs that this process may use have worked since boot, and what was stolen, in s."""
    # Of CPUs that are on, psutil gives the times in the file's order, but not the numbers.
    numbers = re.findall(r"^cpu(\d+)", machine.kernel_text(machine.ROOT / "proc/stat") or "", re.MULTILINE)
    times = dict(zip(map(int, numbers), psutil.cpu_times(percpu=True), strict=False))
    allowed = os.sched_getaffinity(0)
    if allowed <= times.keys():  # else a container has numbers of its own, for its CPUs alone (lxcfs)
        times = {cpu: times[cpu] for cpu in allowed}
    busy = sum(each.user + getattr(each, "nice", 0.0) + each.system for each in times.values())
    return busy, sum(getattr(each, "steal", 0.0) for each in times.values())


def _cpu_seconds_of(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time of processes and of their children that have ended, in s."""
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def _gpu(handle: Any) -> dict[str, float]:
    """Return what this model and driver tell of one GPU; some tell no power, and MIG parts no load."""
    import pynvml

    sample: dict[str, float] = {}
    with suppress(pynvml.NVMLError):
        sample["utilization_percentage"] = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        sample["memory_usage_megabytes"] = int(memory.used) / MEGA
        sample["memory_usage_percentage"] = int(memory.used) / int(memory.total) * 100
    with suppress(pynvml.NVMLError):
        sample["power_usage_watts"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return sample

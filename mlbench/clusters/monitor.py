"""Sample CPU, memory, network and GPUs of a node next to the training loop."""

import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

import psutil

from mlbench import clock
from mlbench.clusters import gpu_state
from mlbench.clusters import node as machine
from mlbench.clusters.energy_counters import EnergyMeter
from mlbench.clusters.gpu_state import GpuWatch
from mlbench.clusters.processes import below, of_session, session_of
from mlbench.record.noise import GpuUse, Interference

FIRST_S = 1.0  # s to the first sample; each pause is twice the one before up to the interval
INTERVAL_S = 5.0  # s between samples
COARSEST_S = 60.0  # s between them at most: 262 kJ, a package's whole counter, last 11 minutes at 400 W
MOST_SAMPLES = 120  # kept between two validations, then every second one, and fewer from there on
MEGA = 1e6  # bytes; MLflow's megabytes are decimal


class NodeMonitor:
    """Sample this node in a thread, one monitor a node. As a context manager it runs until the block ends.

    A sample is flat: `wall` (s since 1970), `node` (as given: None if the run has one node, else e.g. node_0
    as MLflow names them), and numbers under MLflow's names of system metrics. MLflow counts network megabytes
    since the start. `network_..._bytes_per_s` is instead the rate since the sample before, over all
    interfaces, loopback included. `meter` is read with each sample. `gpus`: the UUIDs of the GPUs in
    `gpu_use`. None: all. `pids`: the run's processes here, whose GPU memory counts with that of
    all below them. Default: this one.
    """

    def __init__(
        self,
        interval_s: float = INTERVAL_S,
        *,
        node: str | None = None,
        meter: EnergyMeter | None = None,
        gpus: Sequence[str] | None = None,
        pids: Collection[int] = (),
    ) -> None:
        self._interval_s = interval_s
        self._node, self._meter = node, meter
        self._gpus: list[GpuWatch] = []
        self._used: list[GpuWatch] = []
        nvml = gpu_state.nvml()
        with suppress(*([nvml.NVMLError] if nvml else ())):  # node.describe gives the reason for none
            for index, handle in enumerate(machine.gpu_handles()):
                self._gpus.append(GpuWatch(handle, index, pids or {os.getpid()}))
                if gpus is None or gpu_state.ask("GetUUID", handle) in gpus:
                    self._used.append(self._gpus[-1])
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
                if len(self._samples) >= MOST_SAMPLES:  # hours between validations: coarser is enough
                    self._samples = self._samples[1::2]
                    self._interval_s = min(2 * self._interval_s, COARSEST_S)

    def read(self) -> dict[str, Any]:
        """Return the node's current state. Rates and CPU are since the sample before."""
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
        for index, watch in enumerate(self._gpus):
            sample |= {f"gpu_{index}_{name}": value for name, value in watch.sample(seconds).items()}
        return sample

    def gpu_use(self) -> list[GpuUse]:
        """Return the state of the run's GPUs over the samples so far."""
        with self._lock:
            return [watch.use() for watch in self._used]


class CpuUse:
    """Measure how much of this machine's CPUs other processes, and the hypervisor's other machines, take.

    `own` returns the run's processes. Everything else that the kernel counts belongs to others, except
    interrupts, which count for neither. It walks all processes twice, 10 to 30 ms each (130 processes), so
    not while a batch is timed.
    """

    def __init__(self, own: Callable[[], Iterable[psutil.Process]]) -> None:
        self._own, self._allowed = own, os.sched_getaffinity(0)  # a rank may be bound to some of them later
        self._begin = (
            clock.monotonic(),
            *_cpu_seconds(self._allowed),
            machine.throttled_s(),
            _cpu_seconds_of(own()),
        )

    def interference(self) -> Interference:
        """Return the means since this object was made."""
        now = (
            clock.monotonic(),
            *_cpu_seconds(self._allowed),
            machine.throttled_s(),
            _cpu_seconds_of(self._own()),
        )
        differences = [after - before for before, after in zip(self._begin, now, strict=True)]
        seconds, busy, steal, throttled, own = differences
        seconds = max(seconds, 1e-9)
        return Interference(
            seconds=seconds,
            cpus=float(len(self._allowed)),
            others=max(0.0, busy - max(0.0, own)) / seconds,
            steal=max(0.0, steal) / seconds,
            throttled=max(0.0, throttled) / seconds,
        )


def own_processes(roots: Iterable[int] = ()) -> set[psutil.Process]:
    """Return this process, those with a pid of `roots`, the Ray processes around it, and all below."""
    with suppress(psutil.Error):
        sessions = {session_of(parent) for parent in psutil.Process().parents() if parent.name() == "raylet"}
        return below({os.getpid(), *roots}).union(*(of_session(session) for session in sessions if session))
    return below({os.getpid(), *roots})


def _cpu_seconds(allowed: set[int] | None = None) -> tuple[float, float]:
    """Return the work of these, or all allowed, CPUs since boot and the stolen time, both in s."""
    # For CPUs that are on, psutil returns the times in the file's order, but not the numbers.
    numbers = re.findall(r"^cpu(\d+)", machine.kernel_text(machine.ROOT / "proc/stat") or "", re.MULTILINE)
    times = dict(zip(map(int, numbers), psutil.cpu_times(percpu=True), strict=False))
    allowed = allowed or os.sched_getaffinity(0)
    if allowed <= times.keys():  # else a container numbers its CPUs differently (lxcfs)
        times = {cpu: times[cpu] for cpu in allowed}
    busy = sum(each.user + getattr(each, "nice", 0.0) + each.system for each in times.values())
    return busy, sum(getattr(each, "steal", 0.0) for each in times.values())


def _cpu_seconds_of(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time of processes and of their ended children, in s."""
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total

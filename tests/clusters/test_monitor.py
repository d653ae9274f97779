"""The sampler sees what the machine does; real bytes, real work, a real clock."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from commands import until

from mlbench import clock
from mlbench.clusters import monitor
from mlbench.clusters import node as machine
from mlbench.clusters.energy_counters import EnergyMeter
from mlbench.clusters.monitor import CpuUse, NodeMonitor
from mlbench.clusters.processes import below

NAMES = {
    "cpu_utilization_percentage",
    "system_memory_usage_megabytes",
    "system_memory_usage_percentage",
    "network_receive_bytes_per_s",
    "network_transmit_bytes_per_s",
}


def test_a_sample_has_mlflows_names_and_its_own_time() -> None:
    before = clock.wall()
    sample = NodeMonitor(node="node_1").read()
    assert sample.keys() >= NAMES
    assert before <= sample["wall"] <= clock.wall()
    assert sample["node"] == "node_1"
    assert 0 < sample["system_memory_usage_percentage"] < 100


def test_a_rate_is_that_since_the_sample_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the mean since the start, and each direction its own."""
    seconds = iter([100.0, 104.0, 106.0, 107.0])
    counts = iter([(1_000, 50), (1_400, 70), (1_400, 170), (2_400, 170)])  # bytes received, sent

    def count() -> SimpleNamespace:
        received, sent = next(counts)
        return SimpleNamespace(bytes_recv=received, bytes_sent=sent)

    monkeypatch.setattr(monitor.clock, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(monitor.psutil, "net_io_counters", count)
    sampler = NodeMonitor()
    samples = [sampler.read() for _ in range(3)]
    assert [sample["network_receive_bytes_per_s"] for sample in samples] == [100.0, 0.0, 1_000.0]
    assert [sample["network_transmit_bytes_per_s"] for sample in samples] == [5.0, 50.0, 0.0]


def test_the_first_sample_of_a_running_monitor_has_the_work_since_its_start() -> None:
    with NodeMonitor(0.3) as sampler:
        samples: list[dict[str, object]] = []
        while not samples:
            samples = sampler.drain()  # this loop is the work
    assert samples[0]["cpu_utilization_percentage"] != 0.0


def test_samples_are_handed_over_once_and_the_thread_ends() -> None:
    with NodeMonitor(0.01) as sampler:
        taken: list[float] = []
        while len(taken) < 5:
            taken += [sample["wall"] for sample in sampler.drain()]
    assert taken == sorted(set(taken))
    assert not [thread for thread in threading.enumerate() if thread.name == "system"]


def test_days_between_validations_give_a_coarser_picture_and_the_meter_is_read_every_minute() -> None:
    """A counter of energy that wraps twice unseen has lost a quarter of a megajoule."""
    pauses: list[float] = []
    reads: list[int] = []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return sum(pauses) > 2 * 86_400

    meter: Any = SimpleNamespace(read=lambda: reads.append(1))
    sampler = NodeMonitor(meter=meter)
    sampler._ending = SimpleNamespace(wait=wait, set=lambda: None)  # type: ignore[assignment]
    sampler.read = lambda: {"wall": sum(pauses)}
    sampler._run()
    samples = sampler.drain()
    assert 1 <= len(samples) < monitor.MOST_SAMPLES
    assert samples == sorted(samples, key=lambda sample: sample["wall"])
    assert pauses[:4] == [1.0, 2.0, 4.0, 5.0] and len(reads) == len(pauses) - 1
    assert 5.0 < max(pauses) <= 60.0


@pytest.mark.gpu
def test_memory_taken_on_a_gpu_shows() -> None:
    import torch

    sampler = NodeMonitor()
    before = sampler.read()
    held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    after = sampler.read()
    grown = after["gpu_0_memory_usage_megabytes"] - before["gpu_0_memory_usage_megabytes"]
    assert grown >= 0.99 * held.numel() / 1e6
    assert 0 <= after["gpu_0_utilization_percentage"] <= 100
    assert after["gpu_0_power_usage_watts"] > 0


BUSY = "import time\nend = time.process_time() + 60\nwhile time.process_time() < end: pass"


def other_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", BUSY])


def test_what_others_compute_is_told_from_what_the_run_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One busy process, counted once as a stranger and once as the run's own.

    Both look at the machine at the same two moments, so the process is all that they differ in.
    """
    process, look = other_process(), monitor._cpu_seconds
    machine = [look()]
    monkeypatch.setattr(monitor, "_cpu_seconds", lambda *_: machine[-1])
    try:
        earliest = process_time(process)
        stranger, own = CpuUse(own=set), CpuUse(own=lambda: below([process.pid]))
        latest = process_time(process)
        until(lambda: process_time(process) > latest + 0.5)
        machine.append(look())
        least = process_time(process) - latest
        with_it, without_it = stranger.interference(), own.interference()
        most = process_time(process) - earliest
    finally:
        process.kill()
        process.wait()
    assert with_it.cpus == len(os.sched_getaffinity(0))
    used = with_it.others * with_it.seconds - without_it.others * without_it.seconds
    busy = machine[1][0] - machine[0][0]
    assert min(least, busy) - TICK_S <= used <= most + TICK_S
    assert 0 <= without_it.steal <= with_it.cpus
    assert without_it.throttled >= 0


TICK_S = 0.02  # s; Linux counts CPU time in steps of 10 ms, and two are compared


def process_time(process: subprocess.Popen[bytes]) -> float:
    return sum(psutil.Process(process.pid).cpu_times()[:2])


def test_cpu_time_is_that_of_the_cpus_that_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where others are off, and where a container numbers its own (lxcfs)."""
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc" / "stat"
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(stat.parent))
    ticks = os.sysconf("SC_CLK_TCK")
    for online, allowed, busy in (((0, 2, 4, 6), {0, 2}, 10 + 12), ((0, 1), {4, 6}, 10 + 11)):
        lines = [f"cpu{cpu} {(10 + cpu) * ticks} 0 0 7 0 0 0 {cpu * ticks} 0 0\n" for cpu in online]
        stat.write_text("".join(["cpu  1 1 1 1 1 1 1 1 1 1\n", *lines, "btime 1\n"]))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, allowed=allowed: allowed)
        assert monitor._cpu_seconds()[0] == busy


def test_a_sample_that_fails_ends_neither_the_others_nor_the_reading_of_counters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, readings = psutil.virtual_memory, [0]

    def memory() -> Any:
        if readings[0] < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return read()

    class Meter:
        def read(self) -> None:
            readings[0] += 1

    monkeypatch.setattr(psutil, "virtual_memory", memory)
    with NodeMonitor(0.01, meter=cast("EnergyMeter", Meter())) as sampler:
        until(lambda: sampler._samples)
    assert readings[0] >= 3

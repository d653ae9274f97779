"""Which machine, GPU or link is slow or loses packets, by what all of them measure together.

CPUs are calibrated in turns, as machines may share a host, and all GPUs at once. Then every two machines send
each other messages, and the GPUs of each machine reduce.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from mlbench import clock
from mlbench.clusters import calibrate
from mlbench.tasks.allreduce import gpu_faults, links, verdict
from mlbench.tasks.allreduce.bandwidth import bus_factor
from mlbench.tasks.allreduce.collectives import CollectiveCase, DeviceBarrier, values
from mlbench.training.worker import Worker

Row = dict[str, Any]
CPU_S, GPU_S = 1.0, 6.0  # s of a machine's CPUs, and of all GPUs, which side by side heat each other
LOOKS = 3  # at most: a fault counts that each of them saw, while time is left
RING_BYTES, RING_REPEATS = 2**24, 5


def survey(worker: Worker, *, seconds: float, expected_bytes_per_s: float | None = None) -> list[Row]:
    """Measure for `seconds` at most. Return a row for each machine and each pair, alike on every rank.

    Every rank must call this. expected_bytes_per_s: as of `judged`.
    """
    hosts, ranks = links.machines(worker)
    mine = next(number for number, some in enumerate(ranks) if worker.rank in some)
    machines: list[Row] = [{"kind": "machine", "machine": host, "rates": {}} for host in hosts]
    pairs: dict[tuple[int, int], links.MachinePair] = {}
    begin = clock.monotonic()
    for look in range(1, LOOKS + 1):
        found = list[str]()
        with gpu_faults.watched(hosts[mine], found):
            rates, gpus = _rates(worker, ranks)
            for pair in links.look(worker, ranks, plan(len(hosts), seconds)):
                pairs[pair[:2]] = links.better(pair, pairs.get(pair[:2], pair))
        told = worker.gather([rates, gpus, found])
        for machine, some in zip(machines, ranks, strict=True):
            row, _, sentences = told[some[0]]
            gpus = [gpu for rank in some for gpu in told[rank][1]]
            row |= calibrate.slowest(gpus)
            machine["rates"] = {
                name: max(rate, machine["rates"].get(name, 0.0)) for name, rate in row.items()
            }
            machine["gpus"] = [*calibrate.slow_gpus(gpus), *sentences]
        rows = [*machines, *({"kind": "link", **pair._asdict()} for pair in pairs.values())]
        faults, passed_s = judged(rows, expected_bytes_per_s)["faults"], clock.monotonic() - begin
        # What one look saw may come from other programs. Rank 0's clock decides for all.
        if not faults or worker.gather(passed_s * (look + 1) / look > seconds)[0]:
            break
    return rows


def judged(table: Sequence[Row], expected_bytes_per_s: float | None = None) -> dict[str, Any]:
    """Return the machines and pairs of a table, and one sentence a fault.

    - expected_bytes_per_s: of a machine's link by its hardware profile. None: what most machines reach.
    """
    machines = [row for row in table if row["kind"] == "machine"]
    fields = links.MachinePair._fields
    pairs = [
        links.MachinePair(**{name: row[name] for name in fields}) for row in table if row["kind"] == "link"
    ]
    rings = [row["busbw_bytes_per_s"] for row in table if row["kind"] == "times" and not row["reason"]]
    hosts, rates = [row["machine"] for row in machines], [row["rates"] for row in machines]
    gpus = [row["gpus"] for row in machines]
    return {
        "machines": hosts,
        "calibrations": rates,
        "pairs": [pair._asdict() for pair in pairs],
        "ring_busbw_bytes_per_s": max(rings, default=None),
        "expected_bytes_per_s": expected_bytes_per_s,
        "faults": verdict.faults(hosts, rates, gpus, pairs, expected_bytes_per_s=expected_bytes_per_s),
    }


def plan(machines: int, seconds: float) -> float:
    """Return the seconds for all pairs of a look: what CPUs in turns and GPUs leave of `seconds`."""
    return seconds - machines * CPU_S - GPU_S


def ring(worker: Worker, ranks: Sequence[Sequence[int]] = ()) -> float:
    """Return the bus bandwidth of an all-reduce of all ranks, or of those of this machine, in B/s."""
    size, some = RING_BYTES // 4, next((some for some in ranks if worker.rank in some), None)
    case = CollectiveCase.of("all_reduce", torch.float32, size, base=values(size, worker), worker=worker)
    if some is not None:  # each machine's at once, as they train
        groups = [dist.new_group(list(each)) for each in ranks]
        case.operation = partial(dist.all_reduce, case.received, group=groups[list(ranks).index(some)])
    case.align = DeviceBarrier(worker) if worker.device.type == "cuda" else None
    every = worker.gather(case.seconds(RING_REPEATS, worker))
    slowest = map(max, zip(*(every[rank] for rank in some or range(worker.world_size)), strict=True))
    return case.bytes / min(slowest) * bus_factor("all_reduce", len(some or every))


def _rates(worker: Worker, ranks: Sequence[Sequence[int]]) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Return a machine's rates, on its first rank, and those of this rank's GPUs."""
    rates, gpus, threads = dict[str, float](), list[dict[str, float]](), torch.get_num_threads()
    first = any(worker.rank == some[0] for some in ranks)
    for some in ranks:
        if worker.rank == some[0]:
            rates = calibrate.calibrate(threads, seconds=CPU_S, devices=["cpu"], clock=clock.monotonic)
        worker.barrier()
    if worker.device.type == "cuda":
        gpus = _gpus(threads, [worker.device.index or 0])
        worker.barrier()
        if len(ranks) < worker.world_size:
            rates["gpu_ring_busbw_per_s"] = ring(worker, ranks)
    elif first:
        gpus = _gpus(threads, range(torch.cuda.device_count()))
    return rates, gpus


def _gpus(threads: int, numbers: Sequence[int]) -> list[dict[str, float]]:
    """Return the rates of these GPUs, calibrated side by side: they share the machine's power and air."""

    def rates(number: int) -> dict[str, float]:
        torch.cuda.set_device(number)  # of this thread
        return calibrate.calibrate(threads, seconds=GPU_S, devices=["cuda"], clock=clock.monotonic)

    with ThreadPoolExecutor(max(1, len(numbers))) as pool:
        return list(pool.map(rates, numbers))

"""The measurements of `python -m mlbench.cluster check`, and its verdict.

Machines meet at machine 0 as the workers of a run do. CPUs and GPUs are calibrated as before a run, the
machines in turn; then come all pairs, in rounds of disjoint ones, and task 0's all-reduce over all.
"""

import itertools
from typing import Any

import torch

from mlbench import clock
from mlbench.clusters import calibrate, node
from mlbench.launch import process_group
from mlbench.launch.check import pairs, verdict
from mlbench.tasks.allreduce.bandwidth import bus_factor
from mlbench.tasks.allreduce.collectives import CollectiveCase, values
from mlbench.training.worker import Worker, control_group

TIMEOUT_S = 300.0  # s that machines wait for one another
CALIBRATION_S = 1.0  # s of a machine's CPUs; the machines take turns, as some may share a host
PAIR_S = 10.0  # s of a pair at most, as it is measured over slow links
LOOKS = 3  # at most: a fault counts that each of them saw, while half of the time is left
RING_BYTES = 2**24  # of the all-reduce over all machines
RING_REPEATS = 5


def check(
    rank: int, machines: int, address: str, port: int, *, minutes: float, expected_bytes_per_s: float | None
) -> dict[str, Any]:
    """Measure together with the other machines; return measurements and faults, alike on each of them."""
    own = process_group.choose_interface(address)
    if rank == 0:
        process_group.listen(own, port)
    meeting = process_group.Rendezvous(address, port, TIMEOUT_S)
    process_group.join(meeting, rank, backend="gloo", world_size=machines, timeout_s=TIMEOUT_S)
    try:
        worker = Worker(rank=rank, world_size=machines, control=control_group(TIMEOUT_S))
        described = worker.gather([node.describe().hostname, own])
        hosts, addresses = ([each[part] for each in described] for part in (0, 1))
        if len(set(hosts)) < machines:
            hosts = [f"{host} ({address})" for host, address in described]
        torch.set_num_threads(node.usable_cpus())
        begin = clock.monotonic()
        calibrations: list[dict[str, float]] = [{} for _ in hosts]
        gpus: list[list[str]] = []
        measured: dict[tuple[int, int], pairs.MachinePair] = {}
        faults: list[str] = []
        for _ in range(LOOKS):
            for rates, (new, gpus_of_host) in zip(calibrations, _calibrated(worker), strict=True):
                rates.update({name: max(rate, rates.get(name, 0.0)) for name, rate in new.items()})
                gpus.append(gpus_of_host)
            gpus = gpus[-machines:]
            for pair in _measured(worker, addresses, minutes):
                key = pair.source, pair.target
                measured[key] = pairs.better(pair, measured.get(key, pair))
            faults = verdict.faults(
                hosts, calibrations, gpus, [*measured.values()], expected_bytes_per_s=expected_bytes_per_s
            )
            passed_s = clock.monotonic() - begin
            # What one look saw may have been somebody else's doing; rank 0's clock decides for all.
            if not faults or worker.gather(2 * passed_s > 60 * minutes)[0]:
                break
        ring = _ring(worker)
    finally:
        process_group.leave()
    return {
        "rank": rank,
        "machines": hosts,
        "calibrations": calibrations,
        "pairs": [pair._asdict() for pair in measured.values()],
        "ring_busbw_bytes_per_s": ring,
        "expected_bytes_per_s": expected_bytes_per_s,
        "faults": faults,
    }


def _measured(worker: Worker, addresses: list[str], minutes: float) -> list[pairs.MachinePair]:
    """Return every pair's measurement, both ways; of many machines as many rounds as there is time for."""
    results: list[pairs.MachinePair] = []
    most = max(1, int(60 * minutes / PAIR_S))
    for some in itertools.islice(pairs.rounds(worker.world_size), most):
        peer = next((sum(pair) - worker.rank for pair in some if worker.rank in pair), None)
        row = None if peer is None else pairs.measure(worker, peer, addresses)
        results += [pairs.MachinePair(*each) for each in worker.gather(row) if each]
    return results


def _calibrated(worker: Worker) -> list[Any]:
    """Return of each machine its rates, of GPUs the slowest's, and what is slow among its own GPUs."""
    own: list[Any] = []
    for turn in range(worker.world_size):
        if turn == worker.rank:
            threads, gpus = torch.get_num_threads(), []
            rates = calibrate.calibrate(
                threads, seconds=CALIBRATION_S, devices=["cpu"], clock=clock.monotonic
            )
            for number in range(torch.cuda.device_count()):
                torch.cuda.set_device(number)
                gpus.append(calibrate.calibrate(threads, devices=["cuda"], clock=clock.monotonic))
            own = [{**rates, **calibrate.slowest(gpus)}, calibrate.slow_gpus(gpus)]
        worker.barrier()
    return worker.gather(own)


def _ring(worker: Worker) -> float:
    """Return the bus bandwidth of an all-reduce over all machines, as task 0 measures it."""
    size = RING_BYTES // 4
    base = values(size, worker)
    case = CollectiveCase.of("all_reduce", torch.float32, size, base=base, worker=worker)
    slowest = [max(repeat) for repeat in zip(*worker.gather(case.seconds(RING_REPEATS, worker)), strict=True)]
    return case.bytes / min(slowest) * bus_factor("all_reduce", worker.world_size)

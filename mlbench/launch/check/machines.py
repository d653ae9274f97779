"""The measurements of `python -m mlbench.cluster check`, and its verdict.

Machines meet at machine 0 as the workers of a run do. CPUs and GPUs are calibrated as before a run, the
machines in turn; then come all pairs, in rounds of disjoint ones, and task 0's all-reduce over all.
"""

import itertools
import os
from typing import TYPE_CHECKING, Any

from mlbench.config.errors import UserError

if TYPE_CHECKING:
    from mlbench.launch.check import pairs
    from mlbench.training.worker import Worker

SETTINGS = {
    "rank": ("", "this machine's number, from 0; default: $RANK or $SLURM_PROCID"),
    "machines": ("", "how many there are; default: $WORLD_SIZE or $SLURM_NTASKS"),
    "address": ("", "where machine 0 is reached by the others; default: $MASTER_ADDR"),
    "port": ("29500", "on which machine 0 listens"),
    "hardware": ("", "a profile of conf/hardware with the links' rate; default: what most machines reach"),
    "minutes": ("10", "at most; with many machines not every pair is measured"),
}
VARIABLES = {
    "rank": ("RANK", "SLURM_PROCID"),
    "machines": ("WORLD_SIZE", "SLURM_NTASKS"),
    "address": ("MASTER_ADDR",),
}
TIMEOUT_S = 300.0  # s that machines wait for one another
CALIBRATION_S = 1.0  # s of a machine's CPUs; the machines take turns, as some may share a host
PAIR_S = 10.0  # s of a pair at most, as it is measured over slow links
LOOKS = 3  # at most: a fault counts that each of them saw, while half of the time is left
RING_BYTES = 2**24  # of the all-reduce over all machines
RING_REPEATS = 5


def measured(settings: dict[str, str]) -> dict[str, Any]:
    """Measure as the settings say, which SETTINGS lists; UserError where they do not say enough."""
    given = {name: settings[name] or _variable(name) for name in VARIABLES}
    rank, machines, port = (_number(name, (settings | given)[name]) for name in ("rank", "machines", "port"))
    if not 0 <= rank < machines or machines < 2:
        raise UserError(
            f"rank={rank} machines={machines}: there is nothing to compare",
            hint="give rank= from 0 and machines= of at least 2",
        )
    minutes = float(_number("minutes", settings["minutes"]))
    expected = _expected(settings["hardware"])
    return check(rank, machines, given["address"], port, minutes=minutes, expected_bytes_per_s=expected)


def check(
    rank: int, machines: int, address: str, port: int, *, minutes: float, expected_bytes_per_s: float | None
) -> dict[str, Any]:
    """Measure together with the other machines; return measurements and faults, alike on each of them."""
    import torch

    from mlbench import clock
    from mlbench.clusters import node
    from mlbench.launch import process_group
    from mlbench.launch.check import pairs, verdict
    from mlbench.training.worker import Worker, control_group

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
        "pairs": pairs.plain([*measured.values()]),
        "ring_busbw_bytes_per_s": ring,
        "expected_bytes_per_s": expected_bytes_per_s,
        "faults": faults,
    }


def _measured(worker: "Worker", addresses: list[str], minutes: float) -> "list[pairs.MachinePair]":
    """Return every pair's measurement, both ways; of many machines as many rounds as there is time for."""
    from mlbench.launch.check import pairs

    results: list[pairs.MachinePair] = []
    most = max(1, int(60 * minutes / PAIR_S))
    for some in itertools.islice(pairs.rounds(worker.world_size), most):
        peer = next((sum(pair) - worker.rank for pair in some if worker.rank in pair), None)
        row = None if peer is None else pairs.measure(worker, peer, addresses)
        results += [pairs.MachinePair(*each) for each in worker.gather(row) if each]
    return results


def _calibrated(worker: "Worker") -> list[Any]:
    """Return of each machine its rates, of GPUs the slowest's, and what is slow among its own GPUs."""
    import torch

    from mlbench import clock
    from mlbench.clusters import calibrate

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


def _ring(worker: "Worker") -> float:
    """Return the bus bandwidth of an all-reduce over all machines, as task 0 measures it."""
    import torch

    from mlbench.tasks.allreduce.bandwidth import bus_factor
    from mlbench.tasks.allreduce.collectives import CollectiveCase, values

    size = RING_BYTES // 4
    base = values(size, worker)
    case = CollectiveCase.of("all_reduce", torch.float32, size, base=base, worker=worker)
    slowest = [max(repeat) for repeat in zip(*worker.gather(case.seconds(RING_REPEATS, worker)), strict=True)]
    return case.bytes / min(slowest) * bus_factor("all_reduce", worker.world_size)


def _variable(name: str) -> str:
    value = next((os.environ[variable] for variable in VARIABLES[name] if variable in os.environ), "")
    if not value:
        raise UserError(
            f"check does not know its {name}", hint=f"give {name}=, or start it by torchrun or srun"
        )
    return value


def _number(name: str, text: str) -> int:
    if not text.isdigit():
        raise UserError(f"{name}={text} is no whole number", hint=f"e.g. {name}=4")
    return int(text)


def _expected(hardware: str) -> float | None:
    """Return the rate of a profile's links, B/s; None without a profile."""
    from mlbench.config.compose import compose

    if not hardware:
        return None
    rate = compose([f"hardware={hardware}"]).hardware.network_gbit_per_s
    if rate is None:
        raise UserError(f"hardware={hardware} states no rate of its network", hint="leave hardware= out")
    return rate * 1e9 / 8


def text(result: dict[str, Any]) -> str:
    """Return the verdict for people."""
    from mlbench.record.format import with_prefix

    rates = [8 * pair["bytes_per_s"] for pair in result["pairs"]]
    lines = [
        f"{len(result['machines'])} machines, {len(rates)} links both ways: "
        f"{with_prefix(min(rates), 'bit/s')} to {with_prefix(max(rates), 'bit/s')}, "
        f"all-reduce at {with_prefix(result['ring_busbw_bytes_per_s'], 'B/s')} of bus bandwidth"
    ]
    return "\n".join([*lines, *(result["faults"] or ["nothing is slow and no packet is lost"])])

"""`mlbench cluster check`: which machine, GPU or link is slow or loses packets (docs/clusters.md).

Machines that start the command themselves, by srun, torchrun or ssh, meet at machine 0. On a cluster that the
suite knows it is a run of task 0, whose table has what was measured.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware
from mlbench.record.format import with_prefix

if TYPE_CHECKING:
    from mlbench.record.record import Record

SETTINGS = {
    "rank": ("", "this process's number, from 0 (default: $RANK or $SLURM_PROCID)"),
    "machines": ("", "number of processes (default: $WORLD_SIZE or $SLURM_NTASKS)"),
    "address": ("", "address of process 0 for the others (default: $MASTER_ADDR)"),
    "port": ("29500", "on which process 0 listens"),
    "backend": ("gloo", "nccl: one process for each GPU"),
    "hardware": ("", "a profile of conf/hardware with the links' rate (default: what most machines reach)"),
    "minutes": ("10", "longest time (with many machines not every pair is measured)"),
}
RUN = ["task=allreduce", "task.recipe=check", "division=open", "force=true"]  # on a cluster of the suite
# Gbit/s of one connection between two machines of EC2 outside a placement group (AWS, "Amazon EC2 instance
# network bandwidth"). NCCL uses many, or RDMA.
FLOW_GBIT_PER_S = 5.0
VARIABLES = {
    "rank": ("RANK", "SLURM_PROCID"),
    "machines": ("WORLD_SIZE", "SLURM_NTASKS"),
    "address": ("MASTER_ADDR",),
    "local_rank": ("LOCAL_RANK", "SLURM_LOCALID"),
}
TIMEOUT_S = 300.0  # s that machines wait for one another


def measured(settings: Mapping[str, str]) -> dict[str, Any]:
    """Measure with the settings (see SETTINGS). Raises UserError if they are incomplete."""
    machines = _number("machines", settings["machines"] or _variable("machines"))
    if machines < 2:
        raise UserError(f"machines={machines}: must be at least 2", hint="give the number of machines")
    rank = _number("rank", settings["rank"] or _variable("rank"))
    if rank >= machines:
        hint = f"give rank= from 0 to {machines - 1}"
        raise UserError(f"rank={rank}: must be less than machines={machines}", hint=hint)
    address = settings["address"] or _variable("address")
    port, minutes = (_number(name, settings[name]) for name in ("port", "minutes"))
    experiment = compose(["task=allreduce", f"workers={machines}", *_choices(settings)])
    name = experiment.backend.name
    expected = expected_bytes_per_s(experiment.hardware, name) if settings["hardware"] else None
    import torch  # imported here, with what needs it: other verbs of `cluster` do not

    from mlbench.clusters import node
    from mlbench.launch import process_group
    from mlbench.tasks.allreduce import links, survey
    from mlbench.training.worker import Worker, control_group

    device = torch.device("cpu")
    local_rank = int(_variable("local_rank", default="0"))
    if experiment.backend.device == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    own = process_group.choose_interface(address, sockets=links.STREAMS)
    if rank == 0:
        process_group.listen(own, port)
    meeting = process_group.Rendezvous(address, port, TIMEOUT_S)
    process_group.join(meeting, rank, backend=name, world_size=machines, timeout_s=TIMEOUT_S)
    try:
        control = control_group(TIMEOUT_S)
        own_rank: Any = {"rank": rank, "world_size": machines, "local_rank": local_rank}
        worker = Worker(**own_rank, device=device, backend=name, control=control)
        torch.set_num_threads(node.usable_cpus())
        rows = survey.survey(worker, seconds=60.0 * minutes, expected_bytes_per_s=expected)
        result = survey.judged(rows, expected)
        return {"rank": rank, **result, "ring_busbw_bytes_per_s": survey.ring(worker)}
    finally:
        process_group.leave()


def words(arguments: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Return the words of the run that checks a cluster of the suite. Raises UserError without cluster=."""
    own = [name for name in ("rank", "machines", "address") if settings[name]]
    if not any(word.startswith("cluster=") for word in arguments) or own:
        hint = "a run takes cluster= and workers=, and machines that start it themselves rank= and machines="
        raise UserError(f"check cannot use {' '.join([*arguments, *own])}", hint=hint)
    budget = f"task.time_budget_s={60 * _number('minutes', settings['minutes'])}"
    return [*RUN, budget, *_choices(settings), *arguments]


def of_record(record: "Record") -> dict[str, Any]:
    """Return what a run of these words measured, held to its hardware's rate if that is known."""
    from mlbench.tasks.allreduce import survey

    hardware, backend = record.experiment.hardware, record.experiment.backend.name
    expected = expected_bytes_per_s(hardware, backend) if hardware.network_gbit_per_s else None
    return {"rank": 0, **survey.judged(record.table, expected)}


def expected_bytes_per_s(hardware: Hardware, backend: str) -> float:
    """Return the rate of a profile's links that the backend can reach between two machines, B/s."""
    from mlbench.tasks.allreduce.links import STREAMS

    rate = hardware.network_gbit_per_s
    if rate is None:
        raise UserError(f"hardware={hardware.name} has no network rate", hint="leave hardware= out")
    if backend == "gloo" and hardware.machine and hardware.machine.provider == "aws":
        rate = min(rate, STREAMS * FLOW_GBIT_PER_S)
    return rate * 1e9 / 8


def text(result: dict[str, Any]) -> str:
    """Return the verdict for people."""
    rates = [8 * pair["bytes_per_s"] for pair in result["pairs"]]
    ends = [with_prefix(end, "bit/s") for end in (min(rates), max(rates))] if rates else []
    links = [f"{len(rates)} links both ways: {' to '.join(ends)}"] if rates else []
    rate = result["ring_busbw_bytes_per_s"]  # None: the run made no all-reduce
    ring = [] if rate is None else [f"all-reduce at {with_prefix(rate, 'B/s')} of bus bandwidth"]
    first = ", ".join([f"{len(result['machines'])} machines", *links, *ring])
    return "\n".join([first, *(result["faults"] or ["no link is slow and no packet is lost"])])


def _choices(settings: Mapping[str, str]) -> list[str]:
    return [f"{name}={settings[name]}" for name in ("backend", "hardware") if settings[name]]


def _variable(name: str, default: str = "") -> str:
    value = next((os.environ[variable] for variable in VARIABLES[name] if variable in os.environ), default)
    if not value:
        raise UserError(f"{name}= is missing", hint=f"give {name}=, or start it by torchrun or srun")
    return value


def _number(name: str, text: str) -> int:
    if not text.isdigit():
        raise UserError(f"{name}={text} is not a whole number", hint=f"e.g. {name}=4")
    return int(text)

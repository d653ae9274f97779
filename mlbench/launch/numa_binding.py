"""Bind each rank to the CPUs of one NUMA node: that of its GPU, or without GPUs the one of its share.

Linux gives memory from the node of the CPU that first writes it, so buffers follow. torch binds for GPUs
alone, needs `numactl`, and takes node 0 if the kernel does not know a GPU's (torch.numa, 2.13).
"""

import os
import re
from contextlib import suppress
from typing import Any

from mlbench.clusters import node
from mlbench.config.errors import ClusterError, UserError
from mlbench.config.experiment import Experiment
from mlbench.record.record import NumaBinding

SETTING = "hardware.numa_binding=node"
HINT = "leave hardware.numa_binding= out"


def memory_nodes() -> dict[int, set[int]]:
    """Return the CPUs of each NUMA node that this process may use, without nodes of memory alone."""
    allowed, nodes = os.sched_getaffinity(0), dict[int, set[int]]()
    for folder in (node.ROOT / "sys/devices/system/node").glob("node[0-9]*"):
        ranges = re.findall(r"(\d+)(?:-(\d+))?", node.kernel_text(folder / "cpulist") or "")
        cpus = {cpu for first, last in ranges for cpu in range(int(first), int(last or first) + 1)}
        if cpus & allowed:
            nodes[int(folder.name.removeprefix("node"))] = cpus & allowed
    return dict(sorted(nodes.items()))


def require(experiment: Experiment) -> None:
    """Raise ClusterError if the workers, which are on this machine, cannot be bound to its NUMA nodes."""
    if experiment.hardware.numa_binding == "node":
        _several(memory_nodes())


def choose(worker: Any, local_ranks: int, threads: int, address: str | None) -> tuple[int, set[int]]:
    """Return this rank's NUMA node and its CPUs. Every rank must call this.

    Args:
        worker: of this rank.
        local_ranks: number of ranks on this machine.
        threads: that this rank computes with.
        address: of its GPU on the PCIe bus, e.g. "0000:3b:00.0". None: it computes on CPUs.

    Raises:
        ClusterError: on every rank, if one of them cannot be bound.
    """
    refusal, number, cpus = None, -1, set[int]()
    try:
        nodes = _several(memory_nodes())
        number = _of_gpu(address) if address else [*nodes][worker.local_rank * len(nodes) // local_ranks]
        cpus = nodes.get(number, cpus)
        if not cpus:
            raise ClusterError(
                f"{_here()} may use no CPU of NUMA node {number}, which has its GPU", hint=HINT
            )
    except UserError as error:
        refusal = [error.message, error.hint]
    chosen = worker.gather([_here(), number, len(cpus), threads, refusal])
    for host, number_there, cpus_there, _, refused in chosen:
        if refused is not None:
            raise ClusterError(f"{SETTING}: {refused[0]}", hint=refused[1])
        wanted = sum(each[3] for each in chosen if each[:2] == [host, number_there])
        if wanted > cpus_there:
            raise ClusterError(
                f"{SETTING}: ranks on NUMA node {number_there} of {host} compute with {wanted} threads, and "
                f"it has {cpus_there} CPUs",
                hint="give fewer with hardware.threads_per_worker=, or more workers",
            )
    return number, cpus


def bind(worker: Any, machine: int, number: int, cpus: set[int]) -> list[NumaBinding]:
    """Bind all threads of this process, and with them what it starts. Every rank must call this.

    Args:
        worker: of this rank.
        machine: number of its machine among those of the run.
        number: of the NUMA node.
        cpus: of that node.

    Returns:
        What the kernel reports of each rank on this machine.
    """
    done = set[int]()
    while new := {int(name) for name in os.listdir("/proc/self/task")} - done:  # one may start another
        for thread in new:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)
        done |= new
    with open("/proc/self/status") as status:
        allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", status.read(), re.MULTILINE)
    bound = NumaBinding(rank=worker.rank, node=number, cpus=allowed[1] if allowed else "")
    every = worker.gather([machine, bound.model_dump()])
    return [NumaBinding(**values) for where, values in every if where == machine]


def address(gpu: Any) -> str:
    """Return a GPU's address on the PCIe bus, as /sys writes it."""
    import torch

    has: Any = torch.cuda.get_device_properties(gpu)
    return f"{has.pci_domain_id:04x}:{has.pci_bus_id:02x}:{has.pci_device_id:02x}.0"


def _several(nodes: dict[int, set[int]]) -> dict[int, set[int]]:
    if len(nodes) < 2:
        raise ClusterError(f"the CPUs of {_here()} are one NUMA node: there is nothing to bind", hint=HINT)
    return nodes


def _of_gpu(address: str) -> int:
    text = node.kernel_text(node.ROOT / "sys/bus/pci/devices" / address / "numa_node")
    if text is None or int(text) < 0:  # -1: firmware or hypervisor does not state it
        raise ClusterError(f"the kernel of {_here()} knows no NUMA node of GPU {address}", hint=HINT)
    return int(text)


def _here() -> str:
    return os.uname().nodename

"""Whether the nodes of a run are of one type, whose slowest decides all times, and of the stated one."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from mlbench.config.experiment import Experiment, Hardware
from mlbench.record import cost
from mlbench.record.format import counted
from mlbench.record.record import Node

MOST_NAMES = 4  # of nodes of one type in a sentence


def mixture(nodes: Iterable[Node]) -> str | None:
    """Return of which types the nodes are, in one sentence; None where they are of one."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        names.setdefault(node_type(node), []).append(node.hostname)
    if len(names) < 2:
        return None
    parts = [f"{_listed(hosts)}: {text}" for text, hosts in names.items()]
    return f"the nodes are of {len(names)} types ({'; '.join(parts)})"


def misfits(hardware: Hardware, *, host: str, cpus: int, gpus: Sequence[str] | None) -> dict[str, str]:
    """Return what a node has other than its profile states, and what is not this hardware's therefore.

    `gpus` are the names of its GPUs; None where they say nothing, as the run does not compute on them.
    """
    differences = {}
    stated, model = hardware.cpus, hardware.gpu_model
    # A node keeps some CPUs for its own services, so it may have up to twice those of its workers.
    if stated is not None and not stated <= cpus <= 2 * stated:
        differences[f"states {stated} CPUs a node, {host} has {cpus}"] = "the cost is not this hardware's"
    if model and gpus is not None:
        names = gpus or ["none that the driver names"]
        other = next((name for name in names if not re.search(rf"\b{re.escape(model)}\b", name)), None)
        if other is not None:
            differences[f"states {model} GPUs, {host} has {other}"] = (
                "neither cost nor peak are this hardware's"
            )
    return differences


def other_hardware(experiment: Experiment, nodes: Sequence[Node]) -> list[str]:
    """Return in what the nodes are not the profile's, whose price and peak then say nothing of them."""
    hardware, on_gpu = experiment.hardware, experiment.backend.device == "cuda"
    sentences = []
    for node in nodes:
        gpus = [gpu.name or "?" for gpu in node.gpus] if on_gpu else None
        faults = misfits(hardware, host=node.hostname, cpus=node.usable_cpus, gpus=gpus)
        sentences += [f"hardware={hardware.name} {fault}: {so}" for fault, so in faults.items()]
    if on_gpu and not hardware.gpus and hardware.cpus is not None:
        sentences.append(f"hardware={hardware.name} states no GPU: the cost is not that of the GPUs used")
    stated = cost.nodes(hardware, experiment.workers)
    if nodes and len(nodes) != stated and hardware.workers_per_node is not None:
        sentences.append(
            f"hardware={hardware.name} puts {experiment.workers} worker(s) on {stated} node(s), they ran on "
            f"{len(nodes)}: neither time nor cost are this hardware's"
        )
    return list(dict.fromkeys(sentences))


def node_type(node: Node) -> str:
    """Return what decides how fast a node computes, e.g. "4 CPUs (Intel Xeon), 2 x Tesla T4"."""
    model = node.cpu_model or node.architecture or "model unknown"
    gpus = sorted(Counter(gpu.name or "unknown GPU" for gpu in node.gpus).items())
    cpus = f"{counted(node.usable_cpus, 'CPU')} ({model})"
    return ", ".join([cpus, *(f"{count} x {gpu}" for gpu, count in gpus)])


def _listed(hosts: list[str]) -> str:
    more = len(hosts) - MOST_NAMES
    return ", ".join(hosts[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

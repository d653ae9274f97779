"""Check that the nodes of a run are of one type, as the slowest decides all times, and of the stated one."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from mlbench.config import compose
from mlbench.config.experiment import Experiment, Hardware
from mlbench.record import cost
from mlbench.record.format import counted
from mlbench.record.record import ArithmeticPeak, Gpu, Node

SAME_POWER = 0.1  # share by which a card's largest power limit may differ from its data sheet's
MOST_NAMES = 4  # of nodes of one type in a sentence

SLOWER = {"PCIE", "NVL"}  # forms of a model whose peak is another than that of the profiles


def mixture(nodes: Iterable[Node]) -> str | None:
    """Return the types of the nodes in one sentence, or None if they are all of one type."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        names.setdefault(node_type(node), []).append(node.hostname)
    if len(names) < 2:
        return None
    parts = [f"{_listed(hosts)}: {text}" for text, hosts in names.items()]
    return f"the nodes are of {len(names)} types ({'; '.join(parts)})"


def misfits(hardware: Hardware, *, host: str, cpus: int, gpus: Sequence[str] | None) -> dict[str, str]:
    """Return a node's differences from its profile, each with what does not apply to it therefore.

    `gpus` are the names of its GPUs, or None if they do not matter because the run does not compute on them.
    """
    differences = {}
    stated, model = hardware.cpus, hardware.gpu_model
    # A node keeps some CPUs for its services, so it may have up to twice those of its workers.
    if stated is not None and not stated <= cpus <= 2 * stated:
        differences[f"states {stated} CPUs a node, {host} has {cpus}"] = "the cost is not this hardware's"
    if model and gpus is not None:
        names = gpus or ["none that the driver names"]
        other = next((name for name in names if not _is_model(model, name)), None)
        if other is not None:
            differences[f"states {model} GPUs, {host} has {other}"] = (
                "neither cost nor peak are this hardware's"
            )
    return differences


def _is_model(model: str, name: str) -> bool:
    """Return whether a driver's GPU name is the model's. A PCIe or NVL card is slower than its SXM."""
    words, stated = (set(re.findall(r"\w+", text.upper().replace("_", " "))) for text in (name, model))
    return re.search(rf"\b{re.escape(model)}\b", name) is not None and not (SLOWER & words - stated)


def other_hardware(experiment: Experiment, nodes: Sequence[Node]) -> list[str]:
    """Return how the nodes differ from the profile, whose price and peak then do not apply to them."""
    hardware, on_gpu = experiment.hardware, experiment.backend.device == "cuda"
    sentences = []
    for node in nodes:
        gpus = [gpu.name or "?" for gpu in node.gpus] if on_gpu else None
        faults = misfits(hardware, host=node.hostname, cpus=node.usable_cpus, gpus=gpus)
        stated_w = hardware.gpu_power_w
        for watts in [gpu.power_limit_max_w for gpu in node.gpus] if on_gpu and stated_w else []:
            if stated_w and watts and abs(watts / stated_w - 1) > SAME_POWER:
                fault = f"states GPUs of {stated_w:g} W, {node.hostname} has one of {watts:g} W"
                faults[fault] = "another form of the card, so neither cost nor peak are this hardware's"
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


def peak(
    experiment: Experiment, nodes: Sequence[Node], precision: str, devices: int
) -> ArithmeticPeak | None:
    """Return the peak of the run's profile, else that of all profiles that fit its GPUs; None if unknown.

    A GPU's name alone is no evidence of its form, so profiles without a power limit fit none.
    """
    hardware, on_gpu = experiment.hardware, experiment.backend.device == "cuda"
    profiles, gpus = [hardware], [gpu for node in nodes for gpu in node.gpus]
    if hardware.peak is None and on_gpu and gpus:
        every = map(compose.hardware, compose.choices("hardware"))
        profiles = [each for each in every if all(_is_card(each, gpu) for gpu in gpus)]
    elif on_gpu != bool(hardware.gpus) or other_hardware(experiment, nodes):
        return None
    stated = {getattr(each.peak, precision, None): each.peak.source for each in profiles if each.peak}
    flops_per_s, source = next(iter(stated.items()), (None, ""))
    if len(stated) != 1 or flops_per_s is None:
        return None
    devices = devices if on_gpu else len(nodes)  # a profile's peak of CPUs is a node's
    return ArithmeticPeak(flops_per_s=flops_per_s, devices=devices, precision=precision, source=source)


def _is_card(hardware: Hardware, gpu: Gpu) -> bool:
    stated, watts = hardware.gpu_power_w, gpu.power_limit_max_w
    if not (hardware.gpu_model and gpu.name and stated and watts) or gpu.mig:
        return False
    return _is_model(hardware.gpu_model, gpu.name) and abs(watts / stated - 1) <= SAME_POWER


def node_type(node: Node) -> str:
    """Return the hardware that decides a node's speed, e.g. "4 CPUs (Intel Xeon), 2 x Tesla T4"."""
    model = node.cpu_model or node.architecture or "model unknown"
    gpus = sorted(Counter(gpu.kind for gpu in node.gpus).items())
    cpus = f"{counted(node.usable_cpus, 'CPU')} ({model})"
    return ", ".join([cpus, *(f"{count} x {gpu}" for gpu, count in gpus)])


def _listed(hosts: list[str]) -> str:
    more = len(hosts) - MOST_NAMES
    return ", ".join(hosts[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

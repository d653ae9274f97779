"""Whether the nodes of a run are of one type: the slowest of several decides the time of all."""

from collections import Counter
from collections.abc import Iterable

from mlbench.experiment.format import counted
from mlbench.experiment.record import Node

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


def node_type(node: Node) -> str:
    """Return what decides how fast a node computes, e.g. "4 CPUs (Intel Xeon), 2 x Tesla T4"."""
    model = node.cpu_model or node.architecture or "model unknown"
    gpus = sorted(Counter(gpu.name or "unknown GPU" for gpu in node.gpus).items())
    cpus = f"{counted(node.usable_cpus, 'CPU')} ({model})"
    return ", ".join([cpus, *(f"{count} x {gpu}" for gpu, count in gpus)])


def _listed(hosts: list[str]) -> str:
    more = len(hosts) - MOST_NAMES
    return ", ".join(hosts[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

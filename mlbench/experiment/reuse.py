"""Whether a finished run stands for one that would be measured now: same code, libraries and machine."""

from mlbench.experiment import provenance
from mlbench.experiment.record import Node, Record, Software


def obstacle(record: Record) -> str | None:
    """Return why the record of a run with the same key cannot be reused in this process; None if it can.

    Asked: the hash of mlbench's sources and configuration, Python, every library, and on each node of the
    run the host's name, CPU model, usable CPUs and GPUs. A value that the record lacks is a difference.
    """
    then, now = record.software, Software.model_validate(provenance.software())
    if then.sources != now.sources:
        return "it ran with other sources of mlbench"
    if then.python != now.python:
        return "it ran with another Python"
    for name, version in now.packages.items():
        if then.packages.get(name) != version:
            return f"it ran with {name} {then.packages.get(name)}, here is {version}"
    here = _machine(Node.model_validate(provenance.node()))
    if not record.nodes or any(_machine(node) != here for node in record.nodes):
        return "it ran on another machine"
    return None


def _machine(node: Node) -> tuple[str | int | None, ...]:
    return node.hostname, node.cpu_model, node.usable_cpus, *(gpu.name for gpu in node.gpus)

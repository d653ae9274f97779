"""Whether a finished run stands for one that would be measured now: same code, libraries and machine."""

from typing import Any

from mlbench.experiment import provenance
from mlbench.experiment.record import Record


def obstacle(record: Record) -> str | None:
    """Return why the record of a run with the same key cannot be reused in this process; None if it can.

    Asked: the hash of mlbench's sources and configuration, Python, every library, and on each node of the
    run the host's name, CPU model, usable CPUs and GPUs. A value that the record lacks is a difference.
    """
    then, now = record.software, provenance.software()
    for name, what in (("sources", "other sources of mlbench"), ("python", "another Python")):
        if then.get(name) != now[name]:
            return f"it ran with {what}"
    packages = then.get("packages", {})
    for name, version in now["packages"].items():
        if packages.get(name) != version:
            return f"it ran with {name} {packages.get(name)}, here is {version}"
    here = _machine(provenance.node())
    if not record.nodes or any(_machine(node) != here for node in record.nodes):
        return "it ran on another machine"
    return None


def _machine(node: dict[str, Any]) -> tuple[Any, ...]:
    gpus = [gpu.get("name") for gpu in node.get("gpus") or ()]
    return node.get("hostname"), node.get("cpu_model"), node.get("usable_cpus"), *gpus

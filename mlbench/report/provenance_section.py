"""List the provenance of a study's numbers, as lines for people."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from mlbench.analysis import pooling
from mlbench.record import attempts, fields
from mlbench.record.format import counted
from mlbench.record.record import Node, Record

GIB = 2**30  # bytes


def facts(records: Sequence[Record]) -> list[str]:
    """Return the lines below the title: when, on what and how many."""
    if not records:
        return ["no run"]
    first, last = min(r.started_at for r in records)[:10], max(r.ended_at for r in records)[:10]
    hardware = _each(records, lambda record: [str(record.experiment.hardware.name)])
    return [
        counted(len(attempts.results(records)), "run"),
        *filter(None, [attempts.excluded_summary(records)]),
        first if first == last else f"{first} to {last}",
        f"hardware {', '.join(hardware)}",
        *(f"measured by {source}" for source in _each(records, lambda record: [record.source])),
    ]


def provenance(records: Sequence[Record]) -> list[tuple[str, list[str]]]:
    """Return (name, values). Several values mean that the runs differ in it."""
    facts_by_name = {
        "hardware profile": _each(records, _profile),
        "price": _each(records, _price),
        "whole cluster": _each(records, _whole_bill),
        "nodes": _each(records, lambda record: map(_node, record.nodes)),
        "calibration": _each(records, lambda record: map(_calibration, record.nodes)),
        "packages": _each(records, _packages),
    }
    for field in fields.FIELDS:
        if field.page:
            name = field.name.replace("_", " ") if field.row == fields.SETTINGS else field.row
            facts_by_name[name] = _each(records, partial(_texts, field))
    return [(name, values) for name, values in facts_by_name.items() if values]


def _each(records: Iterable[Record], lines: Callable[[Record], Iterable[str | None]]) -> list[str]:
    """Return every line once, in the order of the runs."""
    return list(dict.fromkeys(line for record in records for line in lines(record) if line))


def _texts(field: fields.Field, record: Record) -> Sequence[str | None]:
    value = field.value(record)
    return value if isinstance(value, list) else [value]


def _profile(record: Record) -> list[str]:
    hardware = record.experiment.hardware
    return [f"{hardware.name}: {hardware.description}"]


def _price(record: Record) -> list[str]:
    price = record.experiment.hardware.price
    if price is None:
        return []
    spot = price.usd_per_hour_spot
    spot = f", {spot:g} USD spot" if spot is not None else ""
    return [f"{price.usd_per_hour:g} USD per hour and node{spot}; {price.source}, {price.date}"]


def _whole_bill(record: Record) -> list[str]:
    text = fields.rows(record).get("whole cluster")
    return [f"{record.run_id}: {text}"] if text else []


def _node(node: Node) -> str:
    gpus = [gpu.kind for gpu in node.gpus]
    drivers = dict.fromkeys(str(gpu.driver) for gpu in node.gpus)
    parts = [
        node.cpu_model,
        f"{node.usable_cpus} usable CPUs",
        f"{node.memory_bytes / GIB:.0f} GiB" if node.memory_bytes else None,
        *(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)),
        *(f"driver {name}" for name in drivers),
        node.os,
        f"kernel {node.kernel}" if node.kernel else None,
        f"Python {node.python}" if node.python else None,
        f"CUDA {node.cuda}" if node.cuda else None,
        f"NCCL {node.nccl}" if node.nccl else None,
    ]
    return ", ".join(filter(None, parts))


def _calibration(node: Node) -> str:
    """Return the node's measured rates to two digits, so that only a different node makes another line."""
    return ", ".join(
        f"{' '.join(name.split('_')[:2])} {pooling.rate(name, float(f'{value:.2g}'))}"
        for name, value in node.calibration.items()
        if name.endswith(("flops_per_s", "bytes_per_s"))
    )


def _packages(record: Record) -> list[str]:
    packages = record.software.packages
    return [", ".join(f"{name} {version}" for name, version in sorted(packages.items()) if version)]

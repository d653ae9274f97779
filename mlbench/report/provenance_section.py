"""Where the numbers of a study come from, as lines for people."""

from collections.abc import Callable, Iterable, Sequence

from mlbench.record import attempts
from mlbench.record.format import counted, duration, usd, with_prefix
from mlbench.record.record import Node, Record

GIB = 2**30  # bytes


def facts(records: Sequence[Record]) -> list[str]:
    """Return what stands below the title: when, on what and how many."""
    if not records:
        return ["no run"]
    first, last = min(r.started_at for r in records)[:10], max(r.ended_at for r in records)[:10]
    hardware = _each(records, lambda record: [str(record.experiment.hardware.name)])
    return [
        counted(len(attempts.results(records)), "run"),
        *filter(None, [attempts.beside(records)]),
        first if first == last else f"{first} to {last}",
        f"hardware {', '.join(hardware)}",
        *(f"measured by {source}" for source in _each(records, lambda record: [record.source])),
    ]


def provenance(records: Sequence[Record]) -> list[tuple[str, list[str]]]:
    """Return (name, values); several values mean that the runs differ in it."""
    facts_by_name = {
        "hardware profile": _each(records, _profile),
        "price": _each(records, _price),
        "whole bill": _each(records, _whole_bill),
        "nodes": _each(records, lambda record: map(_node, record.nodes)),
        "threads per worker": _each(records, _threads),
        "calibration": _each(records, lambda record: map(_calibration, record.nodes)),
        "mlbench": _each(records, lambda record: [record.mlbench]),
        "git": _each(records, _git),
        "packages": _each(records, _packages),
        "division": _each(records, lambda record: [record.experiment.division.name]),
        "prepared data (SHA-256 of the manifest)": _each(records, lambda record: [record.data_hash]),
        "not official because": _each(records, lambda record: record.official_reasons),
        "noise warnings": _each(records, lambda record: record.warnings),
        "caveats": _each(records, lambda record: record.caveats),
    }
    return [(name, values) for name, values in facts_by_name.items() if values]


def _each(records: Iterable[Record], lines: Callable[[Record], Iterable[str | None]]) -> list[str]:
    """Return every line once, in the order of the runs."""
    return list(dict.fromkeys(line for record in records for line in lines(record) if line))


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
    """Return what a run's cluster is billed for, by part, where it was a cloud's."""
    bill = record.cost and record.cost.whole
    if not bill:
        return []
    parts = ", ".join(f"{part} {usd(value)}" for part, value in bill.parts.items())
    waited = "provisioning not measured"
    if bill.provisioning_s is not None:
        waited = f"provisioning {duration(bill.provisioning_s)}"
    return [
        f"{record.run_id}: {usd(bill.usd)} for {duration(bill.billed_s)} ({waited}): {parts}; {bill.source}"
    ]


def _node(node: Node) -> str:
    gpus = [str(gpu.name) for gpu in node.gpus]
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


def _threads(record: Record) -> list[str]:
    threads = sorted({node.threads_per_worker for node in record.nodes if node.threads_per_worker})
    return [f"{counted(record.workers, 'worker')}: {', '.join(map(str, threads))}"] if threads else []


def _calibration(node: Node) -> str:
    """Return the node's measured rates to two digits, so that only a different node makes another line."""
    units = {"flops_per_s": "FLOP/s", "bytes_per_s": "B/s"}
    rates = []
    for name, value in node.calibration.items():
        unit = next((text for end, text in units.items() if name.endswith(end)), None)
        if unit and isinstance(value, int | float):
            rates.append(
                f"{name.split('_')[0]} {name.split('_')[1]} {with_prefix(float(f'{value:.2g}'), unit)}"
            )
    return ", ".join(rates)


def _git(record: Record) -> list[str]:
    git = record.software.git
    return [f"{git.sha}{', with uncommitted changes' if git.dirty else ''}"] if git else []


def _packages(record: Record) -> list[str]:
    packages = record.software.packages
    return [", ".join(f"{name} {version}" for name, version in sorted(packages.items()) if version)]

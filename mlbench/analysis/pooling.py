"""Select the runs that may be pooled and compared: undisturbed ones, on machines of one speed."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlbench.record import provenance
from mlbench.record.format import with_prefix
from mlbench.record.noise import SPEED_SHARE, calibration_outliers
from mlbench.record.record import Record

WARM = 0.9  # share of the data in memory from which a start counts as warm (chosen 2026-11-22)


@dataclass(frozen=True)
class Calibration:
    """The measured speeds of the machines of two points, A and B, side by side.

    - a, b: rates by name, the median over runs of the middle one of a run's nodes. Empty: not measured. The
      slowest of many nodes would be slower than a single one by chance alone.
    - difference: by how much the machines differ, if that is more than SPEED_SHARE, else None.
    - factor: by which times may differ for that difference alone: the quotient of the rates, times 1 +
      SPEED_SHARE for the error of a calibration. 1 without a difference.
    - unknown: why the difference is unknown, or None if both were measured alike.
    """

    a: Mapping[str, float]
    b: Mapping[str, float]
    difference: str | None = None
    factor: float = 1.0
    unknown: str | None = None


def calibration(a: Sequence[Record], b: Sequence[Record]) -> Calibration:
    """Return the speeds of the device that trains (the CPUs if it is not the same on both sides)."""
    devices = {run.experiment.backend.device for run in (*a, *b)}
    device = devices.pop() if len(devices) == 1 else "cpu"
    of_a, of_b = _rates(a, device), _rates(b, device)
    lacking = [side for side, rates in (("A", of_a), ("B", of_b)) if not rates]
    if lacking:
        return Calibration(of_a, of_b, unknown=f"not measured in {' and '.join(lacking)}")
    if device == "cpu" and (cpus := [_cpus(side) for side in (a, b)])[0] != cpus[1]:
        counts = [" or ".join(f"{count:g}" for count in side) for side in cpus]
        how = f"measured with {counts[0]} CPUs in A and {counts[1]} in B"
        return Calibration(of_a, of_b, unknown=how)
    apart = {name: max(of_a[name] / of_b[name], of_b[name] / of_a[name]) - 1 for name in of_a if name in of_b}
    name = max(apart, key=apart.__getitem__, default=None)
    if name is None or apart[name] <= SPEED_SHARE:
        return Calibration(of_a, of_b)
    both = f"{rate(name, of_a[name])} and {rate(name, of_b[name])}"
    difference = f"{both}, {100 * apart[name]:.0f} % apart"
    return Calibration(of_a, of_b, difference, (1 + apart[name]) * (1 + SPEED_SHARE))


def rate(name: str, value: float) -> str:
    """Return a calibrated rate with its unit, e.g. 200 GFLOP/s."""
    return with_prefix(value, "FLOP/s" if "flops" in name else "B/s")


def _rates(runs: Sequence[Record], device: str) -> dict[str, float]:
    medians: dict[str, float] = {}
    for name in (f"{device}_gemm_flops_per_s", f"{device}_copy_bytes_per_s"):
        of_runs = [statistics.median(rates) for run in runs if (rates := [*_node_rates(run, name)])]
        if of_runs:
            medians[name] = statistics.median(of_runs)
    return medians


def _node_rates(run: Record, name: str) -> Iterator[float]:
    return (value for node in run.nodes if (value := node.calibration.get(name, 0.0)) > 0)


def _cpus(runs: Sequence[Record]) -> list[float]:
    """Return with how many CPUs the nodes were calibrated, each number once."""
    counts = {count for run in runs for node in run.nodes if (count := node.calibration.get("threads"))}
    return sorted(counts)


def disturbed(runs: Sequence[Record]) -> dict[str, str]:
    """Return why the times of runs are not those of a quiet machine, by run id.

    A run records other load on its machine, and its nodes may be calibrated far from those of the others. A
    run that missed its goal is not among them: its time is infinite whatever disturbed it.
    """
    reasons = {}
    rates = [_node_rates(run, f"{run.experiment.backend.device}_gemm_flops_per_s") for run in runs]
    outliers = calibration_outliers([min(of_nodes, default=None) for of_nodes in rates])
    for run, share in zip(runs, outliers, strict=True):
        if run.status not in ("goal_reached", "completed"):
            continue
        if run.disturbances:
            reasons[run.run_id] = run.disturbances[0]
        elif share is not None:
            apart = f"{100 * abs(share):.0f} % {'slower' if share < 0 else 'faster'}"
            reasons[run.run_id] = f"its node computed {apart} than those of the other runs"
    return reasons


def mixture(runs: Sequence[Record]) -> tuple[str, ...]:
    """Return what the runs do not share although it may change their times, e.g. "2 states of the code"."""
    packages: dict[str, set[str | None]] = {}
    software = [run.software for run in runs]
    for each in software:
        for name, version in (each.packages | {"Python": each.python}).items():
            packages.setdefault(name, set()).add(version)
    counts = {
        # Not commits: many change no number, and two edits of one that are not committed look alike.
        "states of the code": len({each.code or repr(each.git) for each in software}),
        "settings of the environment": len({repr(provenance.settings(each)) for each in software}),
        **{f"versions of {name}": len(versions) for name, versions in packages.items()},
        "kinds of machines": len({tuple(machine(run)) for run in runs if run.nodes}),
        "prices": len({repr(run.experiment.hardware.price) for run in runs}),
        "states of the page cache": len({_warm(run) for run in runs} - {None}),
    }
    elsewhere = sum(run.origin != run.source for run in runs)
    both = ["runs measured here and imported ones"] if 0 < elsewhere < len(runs) else []
    return tuple([f"{count} {what}" for what, count in counts.items() if count > 1] + both)


def machine(run: Record) -> list[str]:
    """Return the kinds of nodes of a run: processor, usable CPUs and GPUs, each as JSON."""
    kinds = {(str(n.cpu_model), n.usable_cpus, *(gpu.kind for gpu in n.gpus)) for n in run.nodes}
    return sorted(map(json.dumps, kinds))


def _warm(run: Record) -> bool | None:
    """Return whether every node had the data in memory when the clock started, or None if not recorded."""
    cached = [node.data_cached for node in run.nodes if node.data_cached is not None]
    return min(cached) >= WARM if cached else None

"""Which runs of a point may be pooled: those that nothing disturbed; and what else differs among them."""

import json
from collections.abc import Sequence

from mlbench.experiment.noise import calibration_outliers
from mlbench.experiment.record import Record

WARM = 0.9  # share of the data in memory from which a start counts as warm; chosen 2026-11-22


def disturbed(runs: Sequence[Record]) -> dict[str, str]:
    """Return why the times of runs are not those of a quiet machine, by run id.

    A run records what else its machine did, and its nodes may be calibrated far from those of the others.
    A run that missed its goal is not among them: its time is infinite whatever disturbed it.
    """
    reasons = {}
    for run, share in zip(runs, calibration_outliers([_slowest_node(run) for run in runs]), strict=True):
        if run.status not in ("goal_reached", "completed"):
            continue
        if run.disturbances:
            reasons[run.run_id] = run.disturbances[0]
        elif share is not None:
            apart = f"{100 * abs(share):.0f} % {'slower' if share < 0 else 'faster'}"
            reasons[run.run_id] = f"its node computed {apart} than those of the other runs"
    return reasons


def mixture(runs: Sequence[Record]) -> tuple[str, ...]:
    """Return what the runs do not share though it may change their times, e.g. "2 commits"."""
    commits = {(git.sha, git.dirty) for run in runs if (git := run.software.git)}
    packages: dict[str, set[str | None]] = {}
    for run in runs:
        for name, version in run.software.packages.items():
            packages.setdefault(name, set()).add(version)
    counts = {
        "commits": len(commits),
        **{f"versions of {name}": len(versions) for name, versions in packages.items()},
        "kinds of machines": len({tuple(machine(run)) for run in runs if run.nodes}),
        "states of the page cache": len({_warm(run) for run in runs} - {None}),
    }
    elsewhere = sum(run.origin != run.source for run in runs)
    both = ["runs measured here and imported ones"] if 0 < elsewhere < len(runs) else []
    return tuple([f"{count} {what}" for what, count in counts.items() if count > 1] + both)


def machine(run: Record) -> list[str]:
    """Return the kinds of nodes of a run: processor, usable CPUs and GPUs, each as JSON."""
    kinds = {(str(n.cpu_model), n.usable_cpus, *(gpu.name for gpu in n.gpus)) for n in run.nodes}
    return sorted(map(json.dumps, kinds))


def _slowest_node(run: Record) -> float | None:
    """Return the lowest measured rate of computation among the run's nodes, FLOP/s."""
    rates = [
        value
        for node in run.nodes
        for name, value in node.calibration.items()
        if name.endswith("flops_per_s") and isinstance(value, int | float)
    ]
    return min(rates, default=None)


def _warm(run: Record) -> bool | None:
    """Return whether every node had the data in memory when the clock started; None where none told."""
    cached = [node.data_cached for node in run.nodes if node.data_cached is not None]
    return min(cached) >= WARM if cached else None

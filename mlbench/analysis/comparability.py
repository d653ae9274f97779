"""Which runs of a point may be pooled: those that nothing disturbed; and what else differs among them."""

import json
from collections.abc import Sequence
from typing import Any

from mlbench.experiment.noise import calibration_outliers
from mlbench.experiment.record import Record


def disturbed(runs: Sequence[Record]) -> dict[str, str]:
    """Return why the times of runs are not those of a quiet machine, by run id.

    A run tells what else its machine did, and its nodes' calibration may be far from that of the other runs.
    A run that missed its goal is not among them: its time is infinite whatever disturbed it.
    """
    reasons = {run.run_id: run.disturbances[0] for run in runs if run.disturbances}
    rates = [_slowest_node(run) for run in runs]
    for run, share in zip(runs, calibration_outliers(rates), strict=True):
        if share is not None:
            apart = f"{abs(share):.0%} {'slower' if share < 0 else 'faster'}".replace("%", " %")
            reasons.setdefault(run.run_id, f"its node computed {apart} than those of the other runs")
    missed = {run.run_id for run in runs if run.status not in ("goal_reached", "completed")}
    return {run_id: reason for run_id, reason in reasons.items() if run_id not in missed}


def mixture(runs: Sequence[Record]) -> tuple[str, ...]:
    """Return what the runs do not share though it may change their times, e.g. "2 commits"."""
    dumped = [run.model_dump(mode="json", include={"software", "nodes"}) for run in runs]
    found = []
    commits = {json.dumps(one["software"].get("git"), sort_keys=True) for one in dumped}
    if len(commits - {"null"}) > 1:
        found.append(f"{len(commits - {'null'})} commits")
    packages: dict[str, set[str]] = {}
    for one in dumped:
        for name, version in (one["software"].get("packages") or {}).items():
            packages.setdefault(name, set()).add(str(version))
    found += [
        f"{len(versions)} versions of {name}" for name, versions in packages.items() if len(versions) > 1
    ]
    machines = {machine for one in dumped if (machine := _machine(one["nodes"]))}
    if len(machines) > 1:
        found.append(f"{len(machines)} kinds of machines")
    imported = sum(run.imported for run in runs)
    if 0 < imported < len(runs):
        found.append("runs measured here and imported ones")
    return tuple(found)


def _slowest_node(run: Record) -> float | None:
    """Return the lowest measured rate of computation among the run's nodes, FLOP/s."""
    nodes = run.model_dump(mode="json", include={"nodes"})["nodes"]
    rates = [
        value
        for node in nodes
        for name, value in (node.get("calibration") or {}).items()
        if name.endswith("flops_per_s") and isinstance(value, int | float)
    ]
    return min(rates, default=None)


def _machine(nodes: Sequence[dict[str, Any]]) -> str:
    kinds = {
        json.dumps(
            [node.get("cpu_model"), node.get("usable_cpus"), [g.get("name") for g in node.get("gpus") or ()]]
        )
        for node in nodes
        if node.get("cpu_model")
    }
    return " ".join(sorted(kinds))

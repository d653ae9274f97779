"""Build the aggregates of a study as flat rows, one a point: for files, for MLflow and for scripts."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlbench.analysis.speedup import Speedup
from mlbench.record.phases import PHASES
from mlbench.report.grouping import Group, ScalingCurve
from mlbench.report.quantities import OUTSIDE, QUANTITIES

Row = dict[str, Any]
SETTINGS = "recipe", "workers", "backend", "sync", "hardware", "network", "emulated", "nodes", "source"
METRICS = [quantity.name for quantity in QUANTITIES if quantity.name and quantity.metric]


def rows(grouped: Sequence[Group]) -> list[Row]:
    """Return one row a point, the same columns in each, with None for what was not measured.

    Infinite times and costs mean that half of the runs or more missed the goal.
    """
    return [
        _row(group, curve, speedup)
        for group in grouped
        for curve in group.curves
        for speedup in curve.speedups
    ]


def metrics(grouped: Sequence[Group]) -> Iterator[tuple[str, float, int]]:
    """Yield (name, value, workers) of every finite aggregate, for a tracking store with step = workers.

    Points of several curves have the curve's label before the name, e.g. "gloo/speedup". Those of the
    study's tasks have the task's. Points that may not be compared (oversubscribed) are left out.
    """
    for group, labels in zip(grouped, _places(grouped), strict=True):
        for row in rows([group]):
            if not (row["no_speedup"] and row["oversubscribed"]):
                prefix = "".join(f"{part}/" for part in [*labels, row["curve"]] if part)
                values = {name + end: row[name + end] for name in METRICS for end in ("", "_low", "_high")}
                values |= {"runs": row["runs"], "runs_that_reached_the_goal": row["reached"]}
                for name, value in values.items():
                    if value is not None and math.isfinite(value):
                        # MLflow takes letters, digits, and _ - . / : space.
                        yield re.sub(r"[^A-Za-z0-9_\-./: ]", "_", f"{prefix}{name}"), value, row["workers"]


def _places(grouped: Sequence[Group]) -> list[tuple[str, ...]]:
    """Return the label of each group, with data and goal only if nothing else distinguishes it."""
    if len(grouped) < 2:
        return [() for _ in grouped]
    places: list[tuple[str, ...]] = [
        (group.task, group.scale, group.other_data.replace("/", "_"), "emulated" if group.network else "")
        for group in grouped
    ]
    for texts in ([group.dataset for group in grouped], [str(group.goal or "") for group in grouped]):
        pairs = list(zip(places, texts, strict=True))
        places = [
            (*labels, word) if any(other == labels and text != word for other, text in pairs) else labels
            for labels, word in pairs
        ]
    return places


def save(table: Sequence[Row], folder: Path) -> None:
    """Write summary.parquet and summary.csv, in which no text is a formula for a spreadsheet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(table)), folder / "summary.parquet")
    (folder / "summary.csv").write_bytes(csv(table))


def csv(table: Sequence[Row]) -> bytes:
    """Return the rows as CSV, in which no text is a formula for a spreadsheet."""
    import pyarrow as pa
    import pyarrow.csv

    content = pa.BufferOutputStream()
    plain = [{name: _no_formula(value) for name, value in row.items()} for row in table]
    pyarrow.csv.write_csv(pa.Table.from_pylist(plain), content)
    return content.getvalue().to_pybytes()


def _no_formula(value: Any) -> Any:
    """Return a text that a spreadsheet would compute with a quote in front (OWASP, CSV injection)."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value


def _row(group: Group, curve: ScalingCurve, speedup: Speedup) -> Row:
    point = speedup.point
    row: Row = {
        "task": point.task,
        "scale": point.scale,
        "goal": str(point.goal) if point.goal else None,
        "dataset": group.dataset,
        "other_data": group.other_data,
        **{name: getattr(point, name) for name in SETTINGS},
        "curve": curve.label,
        "key": point.key,
        "runs": point.n,
        "reached": point.reached,
        "missed": " ".join(point.missed),
        "oversubscribed": point.oversubscribed,
        "caveats": "; ".join(point.caveats),
        "no_speedup": speedup.why or "",
        "note": speedup.note or "",
        "olympic_mean_s": point.olympic,
        "usd_spent": point.usd_spent,
    }
    for quantity in filter(lambda each: each.name, QUANTITIES):
        estimate: Any = quantity.value(speedup)
        for end in ("value", "low", "high"):
            column = quantity.name if end == "value" else f"{quantity.name}_{end}"
            row[column] = getattr(estimate, end) if estimate else None
    for phase in (*PHASES, *OUTSIDE):
        row[f"{phase}_s_per_epoch"] = {**point.phases, **point.outside}.get(phase)
    return row

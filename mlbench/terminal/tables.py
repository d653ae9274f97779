"""The one table for terminal and pipes, and two selections of runs side by side."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from mlbench.analysis.compare import Comparison, Measure, Pair, parsed
from mlbench.analysis.speedup import Point
from mlbench.experiment import format

PIPE_WIDTH = 320  # columns, where the output is not a terminal that has a width
MOST_FIELDS = 12  # that two configurations differ in; more are counted
IN_LABEL = {"task.name", "scale", "backend.name", "hardware"}  # fields that a label always has
NAMES = {"time_to_accuracy": "time to accuracy / s", "epochs": "epochs", "samples_per_s": "samples/s"}


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[bool] = (), fold: bool = True
) -> str:
    """Return columns as wide as their widest cell; a terminal too narrow for them folds cells.

    `right` says for each column whether it is aligned to the right, as numbers are. Without `fold` lines are
    as long as they are.
    """
    console = Console()
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for number, heading in enumerate(headings):
        justify = "right" if number < len(right) and right[number] else "left"
        grid.add_column(heading, overflow="fold", justify=justify)
    for row in rows:
        grid.add_row(*(format.printable(cell) for cell in row))
    wide = console if console.is_terminal and fold else Console(width=PIPE_WIDTH)
    with wide.capture() as captured:
        wide.print(grid, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return "missed" if math.isinf(value) else format.number(value)
    return str(value)


def compared(found: Comparison, *, limit: float | None) -> str:
    """Return all pairs as text, with what has no partner."""
    sides = {
        "A": [*{pair.a.key: pair.a for pair in found.pairs}.values(), *found.only_a],
        "B": [*{pair.b.key: pair.b for pair in found.pairs}.values(), *found.only_b],
    }
    fields = sorted({name for points in sides.values() for name in _varying(points)})
    parts = [_pair(pair, limit, fields) for pair in found.pairs]
    if {"faster", "slower"} <= {pair.verdict for pair in found.pairs}:
        narrow = f"; narrow both with {' or '.join(f'{name}=' for name in fields)}" if fields else ""
        parts.insert(0, f"{len(found.pairs)} pairs with opposite verdicts{narrow}")
    for side, points in (("A", found.only_a), ("B", found.only_b)):
        if points:
            parts.append(f"only in {side}: {'; '.join(_label(point, fields) for point in points)}")
    return "\n\n".join(parts)


def _varying(points: Sequence[Point]) -> set[str]:
    """Return the fields in which points of one side differ and that a label does not have anyway."""
    every = [dict(point.series) for point in points]
    names = {name for series in every for name in series}
    return {name for name in names if len({series.get(name) for series in every}) > 1} - IN_LABEL


def _label(point: Point, fields: Sequence[str]) -> str:
    workers = format.counted(point.workers, "worker")
    series = dict(point.series)
    more = "".join(f", {name}={_short(parsed(series.get(name, 'null')))}" for name in fields)
    return f"{point.task} {point.scale}, {workers}, {point.backend}, {point.hardware}{more}"


def _pair(pair: Pair, limit: float | None, fields: Sequence[str]) -> str:
    lines = [f"{side}: {_label(point, fields)}, {format.counted(point.n, 'run')}, key {point.key}"
             for side, point in (("A", pair.a), ("B", pair.b))]  # fmt: skip
    shown = [f"{name} {_short(a)} -> {_short(b)}" for name, a, b in pair.differs[:MOST_FIELDS]]
    more = len(pair.differs) - MOST_FIELDS
    if more > 0:
        shown.append(f"and {format.counted(more, 'more field')} (--json has all)")
    lines.append(f"differs: {'; '.join(shown) or 'nothing'}")
    rows = [_measured(measure) for measure in pair.measures if measure.ratio]
    if rows:
        headings = ("median of", "A", "B", "B / A", "95 % interval", "samples")
        lines.append(table(headings, rows))
    lines += [f"note: {note}" for note in pair.notes]
    lines.append(f"verdict: {_verdict(pair)}")
    if limit is not None:
        shown = "yes" if pair.regression else "not shown"
        outcome = f"yes: {pair.goal_regression}" if pair.goal_regression else shown
        lines.append(f"B slower by more than {100 * limit:g} %: {outcome}")
    return "\n".join(lines)


def _verdict(pair: Pair) -> str:
    """Return the verdict with its reason, e.g. `no verdict (one run each: ...)`."""
    if pair.verdict in ("faster", "slower"):
        return f"B is {pair.verdict} ({pair.primary_metric.replace('_', ' ')})"
    return f"{pair.verdict} ({pair.why})"


def _measured(measure: Measure) -> list[str]:
    ratio = measure.ratio
    assert ratio is not None
    ends = "-" if ratio.low is None else f"{_number(ratio.low)} to {_number(ratio.high)}"
    together = "-" if ratio.low is None else "paired by seed" if measure.paired else "independent"
    name = NAMES[measure.name]
    return [name, cell(measure.a), cell(measure.b), _number(ratio.value), ends, together]


def _number(value: float | None) -> str:
    return "-" if value is None else "infinite" if math.isinf(value) else f"{value:.3f}"


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def plain(found: Comparison) -> dict[str, Any]:
    """Return a comparison as plain types, for JSON."""

    def side(point: Any) -> dict[str, Any]:
        return {"key": point.key, "runs": [run.run_id for run in point.records]}

    pairs = []
    for pair in found.pairs:
        measures = {
            one.name: {
                "a": one.a,
                "b": one.b,
                "paired": one.paired,
                "ratio": one.ratio.value,
                "low": one.ratio.low,
                "high": one.ratio.high,
            }
            for one in pair.measures
            if one.ratio
        }
        pairs.append(
            {
                "a": side(pair.a),
                "b": side(pair.b),
                "differs": [{"field": name, "a": a, "b": b} for name, a, b in pair.differs],
                "notes": list(pair.notes),
                "measures": measures,
                "primary_metric": pair.primary_metric,
                "verdict": pair.verdict,
                "why": pair.why,
                "regression": pair.regression,
            }
        )
    return {"pairs": pairs, "only_a": list(map(side, found.only_a)), "only_b": list(map(side, found.only_b))}

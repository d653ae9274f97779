"""Print two selections of runs side by side, as text and as JSON."""

import math
from collections.abc import Sequence
from typing import Any

from mlbench.analysis import pooling
from mlbench.analysis.compare import (
    POWER,
    Comparison,
    PointPair,
    QuantityComparison,
    parsed,
    smallest_difference,
    times,
)
from mlbench.analysis.points import Point
from mlbench.record import format
from mlbench.terminal import tables

MOST_FIELDS = 12  # that two configurations differ in; more are counted
IN_LABEL = {"task.name", "scale", "backend.name", "hardware", "workers"}  # fields that a label always has
NAMES = {"time_to_accuracy": "time to accuracy / s", "epochs": "epochs", "samples_per_s": "samples/s"}
HEADINGS = ("median of", "A", "B", "B / A", "95 % interval", "samples")


def text(compared: Comparison, *, limit: float | None, markdown: bool = False) -> str:
    """Return all pairs, and the points without a partner. `markdown`: with lists and tables."""
    a = [*{pair.a.key: pair.a for pair in compared.pairs}.values(), *compared.only_a]
    b = [*{pair.b.key: pair.b for pair in compared.pairs}.values(), *compared.only_b]
    fields = sorted(_varying(a) | _varying(b))
    parts = [_pair(pair, limit, fields, markdown) for pair in compared.pairs]
    if {"faster", "slower"} <= {pair.verdict for pair in compared.pairs}:
        several = len({pair.a.task for pair in compared.pairs}) > 1
        names = ["task", *fields] if several else fields
        narrow = f". Narrow both with {' or '.join(f'{name}=' for name in names)}" if names else ""
        parts.insert(0, f"{len(compared.pairs)} pairs with opposite verdicts{narrow}")
    for side, points in (("A", compared.only_a), ("B", compared.only_b)):
        if points:
            parts.append(f"only in {side}: {'; '.join(_label(point, fields) for point in points)}")
    return "\n\n".join(parts)


def plain(compared: Comparison) -> dict[str, Any]:
    """Return a comparison as plain types, for JSON."""
    return {
        "pairs": [_plain_pair(pair) for pair in compared.pairs],
        "only_a": list(map(_side, compared.only_a)),
        "only_b": list(map(_side, compared.only_b)),
    }


def _varying(points: Sequence[Point]) -> set[str]:
    """Return the fields in which points of one side differ though their tasks and scales are the same."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for point in points:
        groups.setdefault((point.task, point.scale), []).append(dict(point.series))
    return {
        name
        for every in groups.values()
        for name in {name for series in every for name in series}
        if len({series.get(name) for series in every}) > 1
    } - IN_LABEL


def _label(point: Point, fields: Sequence[str]) -> str:
    workers = format.counted(point.workers, "worker")
    series = dict(point.series)
    more = "".join(f", {name}={_short(parsed(series.get(name, 'null')))}" for name in fields)
    emulated = f", emulated network {point.network}" if point.emulated else ""
    return f"{point.task} {point.scale}, {workers}, {point.backend}, {point.hardware}{emulated}{more}"


def _pair(pair: PointPair, limit: float | None, fields: Sequence[str], markdown: bool) -> str:
    if _label(pair.a, fields) == _label(pair.b, fields):  # what looks alike is distinguished by what differs
        fields = sorted({*fields, *(name for name, _, _ in pair.differs[:MOST_FIELDS])})
    lines = [f"verdict: {_verdict(pair)}"]
    if limit is not None:
        regression = {True: "yes", False: "not shown", None: "no verdict"}[pair.regression]
        outcome = f"yes: {pair.goal_regression}" if pair.goal_regression else regression
        lines.append(f"B slower by more than {100 * limit:g} %: {outcome}")
    lines += [f"{side}: {_label(point, fields)}, {format.counted(point.n, 'run')}, key {point.key}"
              for side, point in (("A", pair.a), ("B", pair.b))]  # fmt: skip
    differing = [f"{name} {_short(a)} -> {_short(b)}" for name, a, b in pair.differs[:MOST_FIELDS]]
    more = len(pair.differs) - MOST_FIELDS
    if more > 0:
        differing.append(f"and {format.counted(more, 'more field')} (--json has all)")
    lines.append(f"differs: {'; '.join(differing) or 'nothing'}")
    rows = [_measured(measure) for measure in pair.measures if measure.ratio]
    below = [*filter(None, (_calibration(pair), _order(pair), _power(pair)))]
    below += [f"note: {note}" for note in pair.notes]
    if markdown:
        table = [tables.markdown(HEADINGS, rows), ""] if rows else []
        return "\n".join([*(f"- {line}" for line in lines), "", *table, *(f"- {line}" for line in below)])
    return "\n".join([*lines, *([tables.table(HEADINGS, rows)] if rows else []), *below])


def _verdict(pair: PointPair) -> str:
    """Return the verdict with its reason, and how many disturbed runs it leaves out or counts."""
    verdict = f"{pair.verdict}: {pair.why}"
    if pair.verdict in ("faster", "slower"):
        verdict = f"B is {pair.verdict} ({pair.primary_metric.replace('_', ' ')})"
    left_out = len(pair.a.left_out) + len(pair.b.left_out)
    counts = len(pair.a.disturbed) + len(pair.b.disturbed) - left_out
    if "--with-disturbed" in pair.why:
        return verdict
    if left_out:
        verdict += f", {format.counted(left_out, 'run')} left out for noise (--with-disturbed counts them)"
    return verdict + (f", {format.counted(counts, 'disturbed run')} counted" if counts else "")


def _calibration(pair: PointPair) -> str:
    calibration = pair.calibration
    if calibration.unknown:
        return f"calibration: {calibration.unknown}, so the machines' speeds cannot be compared"
    sides = (
        ", ".join(pooling.rate(*item) for item in rates.items()) for rates in (calibration.a, calibration.b)
    )
    apart = f"; {calibration.difference.rpartition(', ')[2]}" if calibration.difference else ""
    if calibration.factor > 1 and pair.verdict in ("faster", "slower"):
        apart += ", the times are further apart"
    return "calibration: A {}; B {}".format(*sides) + apart


def _order(pair: PointPair) -> str | None:
    order, runs = pair.order, pair.a.n + pair.b.n
    if order is None or runs < 3:
        return None
    changes = f"{format.counted(order.blocks - 1, 'change')} of side in {runs} runs"
    if order.interleaved:
        return f"order: A and B were interleaved ({changes})"
    how = f"{order.first} before {'BA'['AB'.index(order.first)]}" if order.blocks == 2 else changes
    return f"order: not interleaved, {how}: a change of the machine would look the same"


def _smallest(pair: PointPair) -> float | None:
    x, y, paired = times(pair.a, pair.b)
    return smallest_difference(x, y, paired=paired)


def _power(pair: PointPair) -> str | None:
    share = _smallest(pair)
    if share is None:
        return None
    needed = f"{100 * share:.2g}" if share < 1 else f"{100 * share:,.0f}"
    return (
        f"power: with this spread and n, {100 * POWER:.0f} % of comparisons would show {needed} % more time"
    )


def _measured(measure: QuantityComparison) -> list[str]:
    ratio = measure.ratio
    assert ratio is not None
    ends = "-" if ratio.low is None else f"{_number(ratio.low)} to {_number(ratio.high)}"
    samples = "-" if ratio.low is None else "paired by seed" if measure.paired else "independent"
    values = [tables.cell(measure.a), tables.cell(measure.b), _number(ratio.value)]
    return [NAMES[measure.name], *values, ends, samples]


def _number(value: float | None) -> str:
    return "-" if value is None else "infinite" if math.isinf(value) else f"{value:.3f}"


def _short(value: Any) -> str:
    shown = "-" if value is None else str(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _side(point: Point) -> dict[str, Any]:
    return {"key": point.key, "runs": [run.run_id for run in point.records], "left_out": point.left_out}


def _plain_pair(pair: PointPair) -> dict[str, Any]:
    return {
        "a": _side(pair.a),
        "b": _side(pair.b),
        "differs": [{"field": name, "a": a, "b": b} for name, a, b in pair.differs],
        "notes": list(pair.notes),
        "measures": {
            measure.name: {
                "a": measure.a,
                "b": measure.b,
                "paired": measure.paired,
                "ratio": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
            }
            for measure in pair.measures
            if (ratio := measure.ratio)
        },  # fmt: skip
        "primary_metric": pair.primary_metric,
        "verdict": pair.verdict,
        "why": pair.why,
        "regression": pair.regression,
        "calibration": vars(pair.calibration),
        "order": pair.order and vars(pair.order),
        "smallest_difference": _smallest(pair),
    }

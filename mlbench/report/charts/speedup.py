"""Speed-up over workers, and the times that it is made from."""

import math
from collections.abc import Sequence
from dataclasses import replace

import altair as alt

from mlbench.analysis import marks
from mlbench.analysis.bootstrap import drawable
from mlbench.analysis.points import Point
from mlbench.analysis.tradeoff import format_ratio
from mlbench.record.format import duration
from mlbench.report.grouping import Group, ScalingCurve, of, reasons, workers

ROOM = 1.15  # of an axis: missed runs stand this far above the slowest one
PLACES = 4  # beside a median, where its single runs stand in turn, so that equal ones can be told apart


def speedup(group: Group) -> alt.LayerChart:
    """Return speed-up over workers, total and compute-only and the ideal line."""
    rows: list[marks.Row] = []
    apart: list[marks.Row] = []
    looks: dict[str, marks.Look] = {}
    notes: list[str] = []
    counts = [point.workers for point in group.points]
    beside = marks.side_by_side(counts, 2 * len(group.curves))
    for style, curve in enumerate(group.curves):
        total = "total", [(speedup.point, speedup.total) for speedup in curve.speedups]
        compute = "compute only", [(speedup.point, speedup.compute) for speedup in curve.speedups]
        for place, (name, ratios) in enumerate((total, compute)):
            looks[series := curve.named(name)] = marks.look(style, hollow=place > 0)
            rows += marks.over_workers(
                series,
                ratios,
                lambda point, ratio: f"{workers(point)}: {format_ratio(ratio)}",
                shift=beside[2 * style + place],
                log=True,
            )
        looks[series := curve.named("quotient of times, no speed-up")] = marks.look(style, crossed=True)
        apart += [
            {
                "series": series,
                "x": speedup.point.workers,
                "y": ratio,
                "text": f"{workers(speedup.point)}: {speedup.why}",
            }
            for speedup in curve.speedups
            if speedup.why and drawable(ratio := speedup.excluded_ratio)
        ]
        notes += reasons(curve)
        notes += _open_ended(curve)
        notes += [f"{curve.prefix}Note: {speedup.note}." for speedup in curve.speedups if speedup.note]
    if all(speedup.point is speedup.base for curve in group.curves for speedup in curve.speedups):
        notes.append("Only one worker was measured.")
    ideal = []
    if rows or apart:
        looks["ideal: S = k"] = marks.REFERENCE
        ideal = [{"series": "ideal: S = k", "x": k, "y": k} for k in (min(counts), max(counts))]
    return marks.chart(
        "speedup",
        "Speed-up against one worker",
        [*marks.line(rows), *marks.crosses(apart), *marks.plain_line(ideal)],
        looks=looks,
        x=marks.worker_axis(counts),
        y=marks.axis("speed-up S(k) = T(1) / T(k)", ticks=_powers_of_two([*rows, *apart, *ideal]), log=True),
        about=group.about,
        notes=notes,
    )


def time_to_accuracy(group: Group) -> alt.LayerChart:
    """Return every run's time to the goal, with median and interval; missed goals at the top."""
    medians: dict[bool, list[marks.Row]] = {False: [], True: []}  # by whether the point is excluded
    singles: dict[bool, list[marks.Row]] = {False: [], True: []}  # by whether the run missed its goal
    looks: dict[str, marks.Look] = {}
    notes: list[str] = []
    finite = [time for point in group.points for time in point.times if math.isfinite(time)]
    top = ROOM * max(finite, default=1.0)
    counts = [point.workers for point in group.points]
    beside = marks.side_by_side(counts, (1 + PLACES) * len(group.curves))
    for style, curve in enumerate(group.curves):
        median_shift, *shifts = beside[(1 + PLACES) * style : (1 + PLACES) * (style + 1)]
        looks |= {
            curve.named("median"): marks.look(style),
            curve.named("median, apart"): marks.look(style, crossed=True),
            curve.named("single runs"): marks.look(style, hollow=True),
            curve.named("missed the goal"): marks.look(style, crossed=True),
        }
        for excluded, name in ((False, "median"), (True, "median, apart")):
            points = [point for point in curve.points if (point.exclusion_reason is not None) == excluded]
            medians[excluded] += _medians(curve.named(name), points, median_shift, top=top)
        for missed, name in ((False, "single runs"), (True, "missed the goal")):
            singles[missed] += _single_runs(curve, name, shifts, top=top, missed=missed)
        notes += [
            f"{curve.prefix}{workers(point)}: {of(len(point.missed), point.n)} missed the goal and count as "
            f"infinite time ({', '.join(point.missed)})."
            for point in curve.points
            if point.missed
        ]
        notes += reasons(curve, excluded_only=True)
    layers = [
        *marks.line(medians[False]),
        *marks.intervals(medians[True]),
        *marks.crosses(medians[True]),
        *marks.points(singles[False], size=28),
        *marks.crosses(singles[True], size=28),
    ]
    return marks.chart(
        "time_to_accuracy",
        f"Time to {group.goal}" if group.goal else "Time to accuracy",
        layers if finite else [],  # a scale for missed runs alone would be made up
        looks=looks,
        x=marks.worker_axis(counts),
        y=marks.time_axis("time to accuracy", top, (0, 1.08 * top)),
        about=group.about,
        notes=notes if group.goal else ["The runs had no goal, so they have no time to accuracy."],
    )


def _open_ended(curve: ScalingCurve) -> list[str]:
    """Return whose interval has an end that a logarithmic axis cannot show, and why."""
    ratios = [(speedup.point, speedup.total) for speedup in curve.speedups if speedup.total]
    some = [
        str(point.workers)
        for point, total in ratios
        if any(end is not None and not drawable(end) for end in (total.low, total.high))
    ]
    reason = "missed goals leave the interval of the speed-up open, so that end is not drawn"
    return [f"{curve.prefix}k = {', '.join(some)}: {reason}."] if some else []


def _medians(series: str, points: Sequence[Point], shift: float, *, top: float) -> list[marks.Row]:
    """Return medians with intervals; one that reaches into the missed runs has no upper end but `top`."""
    times = [(point, time) for point in points if (time := point.time_to_accuracy)]
    return marks.over_workers(
        series,
        [(point, replace(time, high=time.high and min(time.high, top))) for point, time in times],
        lambda point, time: f"{workers(point)}: median {duration(time.value)}, n = {time.n}",
        shift=shift,
    )


def _single_runs(
    curve: ScalingCurve, name: str, shifts: Sequence[float], *, top: float, missed: bool
) -> list[marks.Row]:
    """Return single runs and their median."""
    ending = ", missed the goal" if missed else ""
    return [
        {
            "series": curve.named(name),
            "x": point.workers * shifts[index % len(shifts)],
            "y": min(time, top),
            "text": f"{point.records[index].run_id}, {workers(point)}{ending}",
        }
        for point in curve.points
        for index, time in enumerate(point.times)
        if math.isinf(time) == missed
    ]


def _powers_of_two(rows: Sequence[marks.Row]) -> marks.Ticks:
    """Return ticks that cover what is drawn: 0.5, 1, 2, 4, ..."""
    values = marks.drawn(rows, "y", "low", "high")
    if not values:
        return ()
    least, most = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    return [(2.0**power, f"{2.0**power:g}") for power in range(least, most + 1)]

"""Speed-up over workers, and the times that it is made from."""

import math
from collections.abc import Sequence

from mlbench.analysis.bootstrap import Ratio
from mlbench.analysis.chart import (
    Axis,
    Chart,
    Trace,
    drawable,
    ends,
    side_by_side,
    time_axis,
    worker_axis,
)
from mlbench.analysis.points import Point
from mlbench.analysis.speedup import Speedup
from mlbench.analysis.tradeoff import format_ratio
from mlbench.record.format import duration
from mlbench.report.grouping import Group, ScalingCurve, of, reasons, workers

ROOM = 1.15  # of an axis: missed runs stand this far above the slowest one
PLACES = 4  # beside a median, where its single runs stand in turn, so that equal ones can be told apart


def speedup(group: Group) -> Chart:
    """Return speed-up over workers, total and compute-only, beside the ideal line."""
    traces: list[Trace] = []
    notes: list[str] = []
    counts = [point.workers for point in group.points]
    beside = side_by_side(counts, 2 * len(group.curves))
    for style, curve in enumerate(group.curves):
        total = [(speedup, speedup.total) for speedup in curve.speedups]
        compute = [(speedup, speedup.compute) for speedup in curve.speedups]
        traces.append(_curve(curve.named("total"), total, style, beside[2 * style]))
        traces.append(
            _curve(curve.named("compute only"), compute, style, beside[2 * style + 1], secondary=True)
        )
        traces.append(_apart(curve, style))
        notes += reasons(curve)
        notes += _open_ended(curve)
        notes += [f"{curve.prefix}Note: {speedup.note}." for speedup in curve.speedups if speedup.note]
    if all(speedup.point is speedup.base for curve in group.curves for speedup in curve.speedups):
        notes.append("Nothing was measured but one worker.")
    axis = worker_axis(counts)
    if any(len(trace.x) for trace in traces):
        span = [position for position, _ in (axis.ticks[0], axis.ticks[-1])]
        traces.append(Trace("ideal: S = k", span, span, "reference_line"))
    return Chart.of(
        "speedup",
        "Speed-up against one worker",
        about=group.about,
        x=axis,
        y=Axis("speed-up S(k) = T(1) / T(k)", "log", _powers_of_two(traces)),
        traces=traces,
        notes=notes,
    )


def time_to_accuracy(group: Group) -> Chart:
    """Return every run's time to the goal, with median and interval; missed goals at the top."""
    traces: list[Trace] = []
    notes: list[str] = []
    finite = [time for point in group.points for time in point.times if math.isfinite(time)]
    top = ROOM * max(finite, default=1.0)
    counts = [point.workers for point in group.points]
    beside = side_by_side(counts, (1 + PLACES) * len(group.curves))
    for style, curve in enumerate(group.curves):
        joined = [point for point in curve.points if point.exclusion_reason is None]
        apart = [point for point in curve.points if point.exclusion_reason is not None]
        own, *others = beside[(1 + PLACES) * style : (1 + PLACES) * (style + 1)]
        traces.append(_medians(curve.named("median"), joined, style, own, top=top))
        traces.append(_medians(curve.named("median, apart"), apart, style, own, top=top, excluded=True))
        traces += _single_runs(curve, style, others, top=top)
        notes += [
            f"{curve.prefix}{workers(point)}: {of(len(point.missed), point.n)} missed the goal and count as "
            f"infinite time ({', '.join(point.missed)})."
            for point in curve.points
            if point.missed
        ]
        notes += reasons(curve, excluded_only=True)
    return Chart.of(
        "time_to_accuracy",
        f"Time to {group.goal}" if group.goal else "Time to accuracy",
        about=group.about,
        x=worker_axis(counts),
        y=time_axis("time to accuracy", top, (0, 1.08 * top)),
        traces=traces if finite else [],  # a scale for missed runs alone would be made up
        notes=notes if group.goal else ["The runs had no goal, so there is no time to accuracy."],
    )


def _curve(
    label: str,
    measured: Sequence[tuple[Speedup, Ratio | None]],
    style: int,
    shift: float,
    *,
    secondary: bool = False,
) -> Trace:
    some = [(speedup, ratio) for speedup, ratio in measured if ratio and drawable(ratio.value)]
    ratios = [ratio for _, ratio in some]
    return Trace(
        label,
        [speedup.point.workers * shift for speedup, _ in some],
        [ratio.value or math.nan for ratio in ratios],
        "line",
        style,
        secondary=secondary,
        texts=[f"{workers(speedup.point)}: {format_ratio(ratio)}" for speedup, ratio in some],
        **ends(ratios, log=True),
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


def _apart(curve: ScalingCurve, style: int) -> Trace:
    """Return what may not be called a speed-up, to be drawn with another mark and never joined."""
    some = [
        (speedup, speedup.excluded_ratio)
        for speedup in curve.speedups
        if speedup.why and drawable(speedup.excluded_ratio)
    ]
    return Trace(
        curve.named("quotient of times, no speed-up"),
        [speedup.point.workers for speedup, _ in some],
        [apart or math.nan for _, apart in some],
        "marks",
        style,
        excluded=True,
        texts=[f"{workers(speedup.point)}: {speedup.why}" for speedup, _ in some],
    )


def _medians(
    label: str, some: Sequence[Point], style: int, shift: float, *, top: float, excluded: bool = False
) -> Trace:
    measured = [
        (p, p.time_to_accuracy) for p in some if p.time_to_accuracy and drawable(p.time_to_accuracy.value)
    ]
    return Trace(
        label,
        [point.workers * shift for point, _ in measured],
        [time.value for _, time in measured],
        "marks" if excluded else "line",
        style,
        excluded=excluded,
        low=[time.low for _, time in measured],
        # An interval that reaches into the missed runs has no upper end: it is drawn up to them.
        high=[top if time.high == math.inf else time.high for _, time in measured],
        texts=[f"{workers(point)}: median {duration(time.value)}, n = {time.n}" for point, time in measured],
    )


def _single_runs(curve: ScalingCurve, style: int, shifts: Sequence[float], *, top: float) -> list[Trace]:
    """Return single runs beside their median."""
    runs = [
        (
            point.workers * shifts[index % len(shifts)],
            time,
            f"{point.records[index].run_id}, {workers(point)}",
        )
        for point in curve.points
        for index, time in enumerate(point.times)
    ]
    traces = []
    for name, excluded in (("single runs", False), ("missed the goal", True)):
        some = [
            (x, top if excluded else time, f"{run}, missed the goal" if excluded else run)
            for x, time, run in runs
            if math.isinf(time) == excluded
        ]
        xs, ys, texts = zip(*some, strict=True) if some else ((), (), ())
        traces.append(
            Trace(
                curve.named(name),
                xs,
                ys,
                "marks",
                style,
                secondary=not excluded,
                excluded=excluded,
                small=True,
                texts=texts,
            )
        )
    return traces


def _powers_of_two(traces: Sequence[Trace]) -> tuple[tuple[float, str], ...]:
    """Return ticks that cover what is drawn: 0.5, 1, 2, 4, ..."""
    drawn = [
        y for trace in traces for values in (trace.y, trace.low, trace.high) for y in values if drawable(y)
    ]
    if not drawn:
        return ()
    least, most = math.floor(math.log2(min(drawn))), math.ceil(math.log2(max(drawn)))
    return tuple((2.0**power, f"{2.0**power:g}") for power in range(least, most + 1))

"""Speed-up over workers, and the times that it is made from."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mlbench.analysis.chart import (
    Axis,
    Chart,
    Trace,
    drawable,
    drawn,
    over_workers,
    side_by_side,
    time_axis,
    worker_axis,
)
from mlbench.analysis.points import Point
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
        total = "total", [(speedup.point, speedup.total) for speedup in curve.speedups]
        compute = "compute only", [(speedup.point, speedup.compute) for speedup in curve.speedups]
        for place, (name, ratios) in enumerate((total, compute)):
            traces.append(
                over_workers(
                    curve.named(name),
                    ratios,
                    lambda point, ratio: f"{workers(point)}: {format_ratio(ratio)}",
                    shift=beside[2 * style + place],
                    log=True,
                    style=style,
                    secondary=place > 0,
                )
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
        x=worker_axis(counts),
        y=time_axis("time to accuracy", top, (0, 1.08 * top)),
        traces=traces if finite else [],  # a scale for missed runs alone would be made up
        notes=notes if group.goal else ["The runs had no goal, so there is no time to accuracy."],
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
    """Return medians with intervals; one that reaches into the missed runs has no upper end but `top`."""
    times = [(point, time) for point in some if (time := point.time_to_accuracy)]
    return over_workers(
        label,
        [(point, replace(time, high=time.high and min(time.high, top))) for point, time in times],
        lambda point, time: f"{workers(point)}: median {duration(time.value)}, n = {time.n}",
        shift=shift,
        kind="marks" if excluded else "line",
        style=style,
        excluded=excluded,
    )


def _single_runs(curve: ScalingCurve, style: int, shifts: Sequence[float], *, top: float) -> Iterator[Trace]:
    """Yield single runs beside their median."""
    runs = [
        (
            point.workers * shifts[index % len(shifts)],
            time,
            f"{point.records[index].run_id}, {workers(point)}",
        )
        for point in curve.points
        for index, time in enumerate(point.times)
    ]
    for name, missed in (("single runs", False), ("missed the goal", True)):
        some = [run for run in runs if math.isinf(run[1]) == missed]
        yield Trace(
            curve.named(name),
            [x for x, _, _ in some],
            [min(time, top) for _, time, _ in some],
            "marks",
            style,
            secondary=not missed,
            excluded=missed,
            small=True,
            texts=[f"{text}, missed the goal" if missed else text for _, _, text in some],
        )


def _powers_of_two(traces: Sequence[Trace]) -> tuple[tuple[float, str], ...]:
    """Return ticks that cover what is drawn: 0.5, 1, 2, 4, ..."""
    values = drawn(traces, "y", "low", "high")
    if not values:
        return ()
    least, most = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    return tuple((2.0**power, f"{2.0**power:g}") for power in range(least, most + 1))

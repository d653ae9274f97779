"""What the goal costs, over the time that it takes."""

import math
from collections.abc import Sequence

from mlbench.analysis.chart import Axis, Chart, Trace, drawable, drawn, ends, time_axis
from mlbench.analysis.points import MedianEstimate, Point
from mlbench.analysis.tradeoff import optimum
from mlbench.record.format import usd
from mlbench.report.grouping import Group, reasons, workers

ROOM = 1.15  # of an axis: what stands beside a mark has room


def cost(group: Group) -> Chart:
    """Return the price of the goal, with and without start-up, over the time to it; the optimum is marked."""
    traces: list[Trace] = []
    notes: list[str] = []
    for style, curve in enumerate(group.curves):
        allowed = [point for point in curve.points if point.exclusion_reason is None]
        whole = [(point, point.usd_with_startup) for point in allowed]
        traces.append(_bills(curve.named("on demand, with start-up"), whole, style))
        bare, begun = [(point, point.usd) for point in allowed], any(bill for _, bill in whole)
        traces.append(_bills(curve.named("on demand, training alone"), bare, style, secondary=begun))
        spot = [(point, point.usd_spot) for point in allowed]
        other = style + len(group.curves)
        traces.append(_bills(curve.named("spot, training alone"), spot, other, secondary=True))
        best = optimum(curve.points, group.compared)
        notes += [f"{curve.prefix}{best.sentence}"] if best else []
        if best and best.point.usd and best.point.time_to_accuracy:
            traces.append(
                Trace(
                    curve.named("price-performance optimum"),
                    [best.point.time_to_accuracy.value],
                    [(best.point.usd_with_startup or best.point.usd).value],
                    "highlight",
                    style,
                    texts=[f"optimum: {workers(best.point)}"],
                )
            )
        notes += _open_ended(allowed, curve.prefix)
        notes += _without_price(curve.points)
        notes += reasons(curve, excluded_only=True)
    longest, dearest = (max(drawn(traces, *names), default=0.0) for names in (("x", "x_high"), ("y", "high")))
    return Chart.of(
        "cost",
        "Cost vs. time to accuracy",
        x=time_axis("time to accuracy", longest, (0, ROOM * longest or None)),
        y=Axis("cost to the goal / USD", limits=(0, ROOM * dearest or None)),
        traces=traces,
        notes=notes if group.goal else ["The runs had no goal, so there is no cost of it."],
    )


def _open_ended(points: Sequence[Point], prefix: str) -> list[str]:
    some = [str(point.workers) for point in points if point.usd and point.usd.high == math.inf]
    reason = "missed goals leave the interval of the cost without an upper end, so none is drawn"
    return [f"{prefix}k = {', '.join(some)}: {reason}."] if some else []


def _without_price(points: Sequence[Point]) -> list[str]:
    if any(point.usd for point in points):
        unread = all(point.usd_spot is None for point in points)
        return [f"No spot price is stated for {points[0].hardware}."] if unread else []
    if any(point.usd_spent is not None for point in points) and any(point.reached for point in points):
        return [f"Some runs on {points[0].hardware} were measured without a price, so no cost is shown."]
    if any(point.usd_spent is not None for point in points):
        return ["No run reached the goal, so it has no cost."]
    return [
        f"No price is stated for hardware={points[0].hardware}, so no cost is shown: choose "
        "a profile that has one, or write conf/hardware/NAME.yaml."
    ]


def _bills(
    label: str, bills: Sequence[tuple[Point, MedianEstimate | None]], style: int, *, secondary: bool = False
) -> Trace:
    some = [
        (point, bill, point.time_to_accuracy)
        for point, bill in bills
        if bill and drawable(bill.value) and point.time_to_accuracy
    ]
    across = ends([time for *_, time in some])
    return Trace(
        label,
        [time.value for *_, time in some],
        [bill.value for _, bill, _ in some],
        "line",
        style,
        secondary=secondary,
        texts=[f"{workers(point)}: {usd(bill.value)}" for point, bill, _ in some],
        annotations=[] if secondary else [f"k = {point.workers}" for point, *_ in some],
        x_low=across["low"],
        x_high=across["high"],
        **ends([bill for _, bill, _ in some]),
    )

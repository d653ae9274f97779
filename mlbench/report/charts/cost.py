"""What the goal costs, over the time that it takes."""

import math
from collections.abc import Sequence

import altair as alt

from mlbench.analysis import marks
from mlbench.analysis.bootstrap import drawable
from mlbench.analysis.points import MedianEstimate, Point
from mlbench.analysis.tradeoff import optimum
from mlbench.record.format import usd
from mlbench.report.grouping import Group, reasons, workers

ROOM = 1.15  # of an axis: what stands beside a mark has room


def cost(group: Group) -> alt.LayerChart:
    """Return the price of the goal, with and without start-up, over the time to it; the optimum is marked."""
    above: list[marks.Row] = []  # their names are above in one curve and below in the next
    below: list[marks.Row] = []
    bare: list[marks.Row] = []
    rings: list[marks.Row] = []
    looks: dict[str, marks.Look] = {}
    notes: list[str] = []
    for style, curve in enumerate(group.curves):
        allowed = [point for point in curve.points if point.exclusion_reason is None]
        begun = any(point.usd_with_startup for point in allowed)
        whole, training, spot, optimal = (
            curve.named(name)
            for name in (
                "on demand, with start-up",
                "on demand, training alone",
                "spot, training alone",
                "price-performance optimum",
            )
        )
        looks |= {
            whole: marks.look(style),
            training: marks.look(style, hollow=begun),
            spot: marks.look(style + len(group.curves), hollow=True),
            optimal: marks.RING,
        }
        named = _bills(whole, [(point, point.usd_with_startup) for point in allowed])
        alone = _bills(training, [(point, point.usd) for point in allowed])
        (below if style % 2 else above).extend(named if begun else alone)
        bare += alone if begun else []
        bare += _bills(spot, [(point, point.usd_spot) for point in allowed])
        best = optimum(curve.points, group.compared)
        notes += [f"{curve.prefix}{best.sentence}"] if best else []
        if best and best.point.usd and best.point.time_to_accuracy:
            bill = best.point.usd_with_startup or best.point.usd
            place = {"x": best.point.time_to_accuracy.value, "y": bill.value}
            rings.append({"series": optimal, "text": f"optimum: {workers(best.point)}", **place})
        notes += _open_ended(allowed, curve.prefix)
        notes += _without_price(curve.points)
        notes += reasons(curve, excluded_only=True)
    rows = [*above, *below, *bare]
    longest = max(marks.drawn(rows, "x", "x_high"), default=0.0)
    dearest = max(marks.drawn(rows, "y", "high"), default=0.0)
    return marks.chart(
        "cost",
        "Cost vs. time to accuracy",
        [*marks.line(rows), *marks.texts(above), *marks.texts(below, below=True), *marks.rings(rings)],
        looks=looks,
        x=marks.time_axis("time to accuracy", longest, (0, ROOM * longest or None)),
        y=marks.axis("cost to the goal / USD", limits=(0, ROOM * dearest or None)),
        about=group.about,
        notes=notes if group.goal else ["The runs had no goal, so they have no cost."],
    )


def _open_ended(points: Sequence[Point], prefix: str) -> list[str]:
    some = [str(point.workers) for point in points if point.usd and point.usd.high == math.inf]
    reason = "missed goals leave the interval of the cost without an upper end, so none is drawn"
    return [f"{prefix}k = {', '.join(some)}: {reason}."] if some else []


def _without_price(points: Sequence[Point]) -> list[str]:
    if any(point.usd for point in points):
        unread = all(point.usd_spot is None for point in points)
        return [f"No spot price for {points[0].hardware}."] if unread else []
    if any(point.usd_spent is not None for point in points) and any(point.reached for point in points):
        return [f"Some runs on {points[0].hardware} were measured without a price, so no cost is shown."]
    if any(point.usd_spent is not None for point in points):
        return ["No run reached the goal, so it has no cost."]
    return [
        f"No price for hardware={points[0].hardware}, so no cost is shown: choose "
        "a profile that has one, or write conf/hardware/NAME.yaml."
    ]


def _bills(series: str, bills: Sequence[tuple[Point, MedianEstimate | None]]) -> list[marks.Row]:
    return [
        {
            "series": series,
            "x": time.value,
            "y": bill.value,
            "text": f"{workers(point)}: {usd(bill.value)}",
            "annotation": f"k = {point.workers}",
            **marks.ends(bill),
            **marks.ends(time, "x_low", "x_high"),
        }
        for point, bill in bills
        if bill and drawable(bill.value) and (time := point.time_to_accuracy)
    ]

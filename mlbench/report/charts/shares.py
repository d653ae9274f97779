"""Where an epoch's time goes, and how much of it is communication."""

from collections.abc import Sequence

from mlbench.report.chart import DODGE, Axis, Chart, Trace, ends, worker_axis
from mlbench.report.families import Group, workers
from mlbench.speedup import Estimate, Point
from mlbench.tracker import PHASES
from mlbench.units import duration, percent

OUTSIDE = ("loading", "validation", "report")  # what a run does between its batches
BAR = 0.7  # width of a bar, of the distance between two


def phases(group: Group) -> Chart:
    """Return an epoch's time as stacked phases and what lies outside the batches."""
    bars = [(family, point) for family in group.families for point in family.points if point.phases]
    order = (*PHASES, *OUTSIDE)
    names = [name for name in order if any(_part(point, name) for _, point in bars)]
    places = [float(place) for place in range(len(bars))]
    bottoms = [0.0] * len(bars)
    traces = []
    for name in names:
        heights = [_part(point, name) for _, point in bars]
        label = "communication (exposed)" if name == "communication" else name.replace("_", " ")
        traces.append(
            Trace(
                label,
                places,
                heights,
                "bars",
                order.index(name),
                base=list(bottoms),
                width=BAR,
                texts=[f"{label}: {duration(height)}" for height in heights],
            )
        )
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    traces.append(Trace("", places, bottoms, "texts", texts=[duration(bottom) for bottom in bottoms]))
    several = len(group.families) > 1
    labels = [f"{point.workers}\n{family.label}" if several else str(point.workers) for family, point in bars]
    return Chart.of(
        "phases",
        "Where an epoch's time goes",
        about=group.about,
        x=Axis(
            "workers k",
            ticks=tuple(zip(places, labels, strict=True)),
            limits=(-1.0, max(len(bars), 2)),
        ),
        y=Axis("time an epoch / s", limits=(0, 1.12 * max(bottoms, default=1.0))),
        traces=traces,
        words=["Means over ranks and runs, so that the parts add up."]
        + [
            f"{family.prefix}{workers(point)}: no phases were measured."
            for family in group.families
            for point in family.points
            if not point.phases
        ],
    )


def communication(group: Group) -> Chart:
    """Return the exposed and the overlapped share of communication over workers."""
    traces = []
    for style, family in enumerate(group.families):
        exposed = [(point, point.exposed) for point in family.points if point.exposed]
        overlapped = [(point, point.overlapped) for point in family.points if point.overlapped]
        traces.append(_shares(family.named("exposed"), exposed, style, 1 / DODGE))
        traces.append(
            _shares(family.named("overlapped with backward"), overlapped, style, DODGE, hollow=True)
        )
    return Chart.of(
        "communication",
        "Communication as a share of the time in batches",
        about=group.about,
        x=worker_axis([point.workers for point in group.points]),
        y=Axis("share of the time in batches / %", limits=(0, 102)),
        traces=traces,
        words=[] if any(len(trace.x) for trace in traces) else ["No run measured its communication."],
    )


def _part(point: Point, name: str) -> float:
    return point.phases.get(name, 0.0) + point.outside.get(name, 0.0)


def _shares(
    label: str, found: Sequence[tuple[Point, Estimate]], style: int, shift: float, *, hollow: bool = False
) -> Trace:
    shares = [share.times(100) for _, share in found]
    return Trace(
        label,
        [point.workers * shift for point, _ in found],
        [share.value for share in shares],
        "line",
        style,
        hollow=hollow,
        texts=[f"{workers(point)}: {percent(share.value)}" for point, share in found],
        **ends(shares),
    )

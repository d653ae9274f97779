"""Where an epoch's time goes, and how much of it is communication."""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from mlbench.analysis.chart import Axis, Chart, Trace, over_workers, side_by_side, time_axis, worker_axis
from mlbench.analysis.points import Point
from mlbench.record.format import duration
from mlbench.record.phases import PHASES, TRAIN_STEP
from mlbench.report.grouping import Group, workers

OUTSIDE = ("loading", "validation", "report")  # what a run does between its batches
BAR = 0.7  # width of a bar, of the distance between two
APART = 0.6  # distance between two groups of bars, beyond that between two bars
LABELS = {"wait": "wait for the slowest", "transfer": "transfer (exposed)"}
LETTERS_ABOVE = 95  # letters of 6.5 pixels that fit above all bars together
LETTERS = 5  # letters that fit below a bar where there are many
LONGEST_WORD = 9  # letters of a line below a group of one bar


def phases(group: Group) -> Chart:
    """Return an epoch's time as stacked phases and what lies outside the batches."""
    curves = [(curve.label, [point for point in curve.points if point.phases]) for curve in group.curves]
    curves = [(label, points) for label, points in curves if points]
    bars = [point for _, points in curves for point in points]
    order = (*PHASES, *OUTSIDE, TRAIN_STEP)
    names = [name for name in order if any(_part(point, name) for point in bars)]
    places, ticks = _places(curves)
    parts = [
        (LABELS.get(name, name.replace("_", " ")), order.index(name), [_part(point, name) for point in bars])
        for name in names
    ]
    traces, tops = stacked(parts, places, width=BAR)
    totals = [duration(top) for top in tops]
    if max(map(len, totals), default=0) * len(totals) <= LETTERS_ABOVE:
        traces.append(Trace("", places, tops, "labels", texts=totals))
    return Chart.of(
        "phases",
        "Time per epoch by phase",
        x=Axis(
            "workers k",
            ticks=ticks,
            limits=(-1.0, max(places[-1] + 1, 2.0) if places else 2.0),
        ),
        y=time_axis("time per epoch", tallest := max(tops, default=1.0), (0, 1.12 * tallest)),
        traces=traces,
        notes=["Means over ranks and runs, so that the parts add up."]
        + [
            f"{curve.prefix}{workers(point)}: no phases of an epoch were measured."
            for curve in group.curves
            for point in curve.points
            if not point.phases
        ],
    )


def stacked(
    parts: Iterable[tuple[str, int, Sequence[float]]], places: Sequence[float], *, width: float
) -> tuple[list[Trace], list[float]]:
    """Return bars that stand on each other and their tops, from label, style and seconds of each part."""
    tops = [0.0] * len(places)
    traces = []
    for label, style, heights in parts:
        texts = [f"{label}: {duration(height)}" for height in heights]
        traces.append(Trace(label, places, heights, "bars", style, base=tops, width=width, texts=texts))
        tops = [top + height for top, height in zip(tops, heights, strict=True)]
    return traces, tops


def _places(
    curves: Sequence[tuple[str, Sequence[Point]]],
) -> tuple[list[float], tuple[tuple[float, str], ...]]:
    """Return where each bar stands, and what is written below: workers, and each curve's label once."""
    places: list[float] = []
    texts: dict[float, str] = {}
    for label, points in curves:
        first = places[-1] + 1 + APART if places else 0.0
        own = [first + number for number in range(len(points))]
        texts |= {position: str(point.workers) for position, point in zip(own, points, strict=True)}
        if len(curves) > 1:
            middle = (own[0] + own[-1]) / 2
            below = wrap(label, max(LETTERS * len(own), LONGEST_WORD), break_long_words=False)
            texts[middle] = "\n".join([texts.get(middle, ""), *below])
        places += own
    return places, tuple(sorted(texts.items()))


def communication(group: Group) -> Chart:
    """Return the exposed and the overlapped share of communication over workers."""
    traces = []
    counts = [point.workers for point in group.points]
    beside = side_by_side(counts, 2 * len(group.curves))
    for style, curve in enumerate(group.curves):
        exposed = "exposed", [(point, point.exposed) for point in curve.points]
        overlapped = "overlapped with backward", [(point, point.overlapped) for point in curve.points]
        for place, (name, shares) in enumerate((exposed, overlapped)):
            traces.append(
                over_workers(
                    curve.named(name),
                    [(point, share and share.times(100)) for point, share in shares],
                    lambda point, share: f"{workers(point)}: {share.value:.1f} %",
                    shift=beside[2 * style + place],
                    style=style,
                    secondary=place > 0,
                )
            )
    return Chart.of(
        "communication",
        "Communication as a share of the time in batches",
        x=worker_axis(counts),
        y=Axis("share of the time in batches / %", limits=(0, 102)),
        traces=traces,
        notes=[] if any(len(trace.x) for trace in traces) else ["No run measured its communication."],
    )


def _part(point: Point, name: str) -> float:
    return point.phases.get(name, 0.0) + point.outside.get(name, 0.0)

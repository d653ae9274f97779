"""Where an epoch's time goes, and how much of it is communication."""

from collections.abc import Mapping, Sequence
from textwrap import wrap

import altair as alt

from mlbench.analysis import marks
from mlbench.analysis.points import Point
from mlbench.record.format import duration
from mlbench.record.phases import PHASES, TRAIN_STEP
from mlbench.report.grouping import Group, workers
from mlbench.report.quantities import OUTSIDE

BAR = 0.7  # width of a bar, of the distance between two
APART = 0.6  # distance between two groups of bars, beyond that between two bars
LABELS = {"wait": "wait for the slowest", "transfer": "transfer (exposed)"}
LETTERS_ABOVE = 95  # letters of 6.5 pixels that fit above all bars together
LETTERS = 5  # letters that fit below a bar where there are many
LONGEST_WORD = 9  # letters of a line below a group of one bar


def phases(group: Group) -> alt.LayerChart:
    """Return an epoch's time as stacked phases and what lies outside the batches."""
    curves = [(curve.label, [point for point in curve.points if point.phases]) for curve in group.curves]
    curves = [(label, points) for label, points in curves if points]
    bars = [point for _, points in curves for point in points]
    order = (*PHASES, *OUTSIDE, TRAIN_STEP)
    names = [name for name in order if any(_part(point, name) for point in bars)]
    places, ticks = _places(curves)
    shown = [LABELS.get(name, name.replace("_", " ")) for name in names]
    parts = {label: [_part(point, name) for point in bars] for label, name in zip(shown, names, strict=True)}
    rows, tops = stacked(parts, places, width=BAR)
    totals = [duration(top) for top in tops]
    room = max(map(len, totals), default=0) * len(totals) <= LETTERS_ABOVE
    above = [
        {"x": x, "y": top, "annotation": text} for x, top, text in zip(places, tops, totals, strict=True)
    ]
    return marks.chart(
        "phases",
        "Time per epoch by phase",
        [*marks.bars(rows), *(marks.texts(above, beside=False) if room and rows else [])],
        looks={label: marks.tint(order.index(name)) for label, name in zip(shown, names, strict=True)},
        x=marks.axis("workers k", ticks=ticks, limits=(-1.0, max(places[-1] + 1, 2.0) if places else 2.0)),
        y=marks.time_axis("time per epoch", tallest := max(tops, default=1.0), (0, 1.12 * tallest)),
        about=group.about,
        notes=["Means over ranks and runs, so that the parts add up."]
        + [
            f"{curve.prefix}{workers(point)}: no phases of an epoch were measured."
            for curve in group.curves
            for point in curve.points
            if not point.phases
        ],
    )


def stacked(
    parts: Mapping[str, Sequence[float]], places: Sequence[float], *, width: float
) -> tuple[list[marks.Row], list[float]]:
    """Return bars that stand on each other and their tops, from the seconds of each part."""
    tops = [0.0] * len(places)
    rows: list[marks.Row] = []
    for label, heights in parts.items():
        for index, (place, height) in enumerate(zip(places, heights, strict=True)):
            base, tops[index] = tops[index], tops[index] + height
            sides = {"left": place - width / 2, "right": place + width / 2, "base": base, "top": tops[index]}
            text = f"{label}: {duration(height)}"
            rows.append({"series": label, "x": place, "y": height, "text": text, **sides})
    return rows, tops


def _places(
    curves: Sequence[tuple[str, Sequence[Point]]],
) -> tuple[list[float], marks.Ticks]:
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
    return places, sorted(texts.items())


def communication(group: Group) -> alt.LayerChart:
    """Return the exposed and the overlapped share of communication over workers."""
    rows: list[marks.Row] = []
    looks: dict[str, marks.Look] = {}
    counts = [point.workers for point in group.points]
    beside = marks.side_by_side(counts, 2 * len(group.curves))
    for style, curve in enumerate(group.curves):
        exposed = "exposed", [(point, point.exposed) for point in curve.points]
        overlapped = "overlapped with backward", [(point, point.overlapped) for point in curve.points]
        for place, (name, shares) in enumerate((exposed, overlapped)):
            looks[series := curve.named(name)] = marks.look(style, hollow=place > 0)
            rows += marks.over_workers(
                series,
                [(point, share and share.times(100)) for point, share in shares],
                lambda point, share: f"{workers(point)}: {share.value:.1f} %",
                shift=beside[2 * style + place],
            )
    return marks.chart(
        "communication",
        "Communication as a share of the time in batches",
        marks.line(rows),
        looks=looks,
        x=marks.worker_axis(counts),
        y=marks.axis("share of the time in batches / %", limits=(0, 102)),
        about=group.about,
        notes=[] if rows else ["No run measured its communication."],
    )


def _part(point: Point, name: str) -> float:
    return point.phases.get(name, 0.0) + point.outside.get(name, 0.0)

"""Build the marks, axes and legends that the charts share. Each chart is an `altair.LayerChart`.

A row is a dict of plain values: `x`, `y`, its `series` in the legend, and the `text` that its mark shows. It
has its `trace` if a series has several lines. The ends of its intervals are `low` and `high` of y, and
`x_low` and `x_high`. Series differ in mark and dash as well as in colour, to be distinct in grey.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from mlbench.analysis.bootstrap import Ratio, drawable
from mlbench.analysis.points import MedianEstimate, Point

Row = dict[str, Any]
Layers = list[alt.Chart]
Ticks = Sequence[tuple[float, str]]  # position and text (a text of several lines has line breaks)

UNITS = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"))  # s
STEPS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000, 100_000)
MOST_TICKS = 7
EDGE = 1.35  # factor from the ends of an axis of workers to the least and the largest number
MARK_STEP = 1.06  # factor between neighbouring marks of one number of workers, if there is room
LABEL_SHARE = 0.035  # of an axis of workers, for a number below it
SPREAD = 0.4  # of the way to the nearest other number, on the logarithmic axis, for the marks of one
MOST_NAMED = 12  # marks that a chart's description names
LEGEND_LETTERS = 105  # letters in a line of the legend

# Okabe and Ito 2008, "Color universal design": distinct with every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#B8A800")
GREY = "#808080"  # readable on white and on black
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-right", "triangle-left")
CROSS = "M-1,-1L1,1M1,-1L-1,1"
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 2, 1, 2, 1, 2])
Look = dict[str, Any]  # the values of a series on the channels that the legend explains
REFERENCE: Look = {"stroke": GREY, "fill": GREY, "shape": "stroke", "strokeDash": [5, 4]}
RING: Look = {"stroke": GREY, "fill": "transparent", "shape": "circle", "strokeDash": [1, 0]}


def look(style: int, *, hollow: bool = False, crossed: bool = False, grey: bool = False) -> Look:
    """Return colour, mark and dash of the `style`-th series. `hollow` marks have a dotted line."""
    colour = GREY if grey else COLOURS[style % len(COLOURS)]
    return {
        "stroke": colour,
        "fill": "transparent" if hollow else colour,
        "shape": CROSS if crossed else SHAPES[style % len(SHAPES)],
        "strokeDash": [2, 3] if hollow else DASHES[style % len(DASHES)],
    }


def tint(style: int) -> Look:
    """Return the colour of the `style`-th part of a bar, a lighter one beyond the eighth."""
    colour = look(style)["fill"]
    if style >= len(COLOURS):
        parts = (int(colour[offset : offset + 2], 16) for offset in (1, 3, 5))
        colour = "#" + "".join(f"{(part + 2 * 255) // 3:02x}" for part in parts)
    return look(style) | {"fill": colour}


def chart(
    name: str,
    title: str,
    layers: Layers,
    *,
    looks: Mapping[str, Look],
    x: dict[str, Any],
    y: dict[str, Any],
    about: str = "",
    notes: Iterable[str] = (),
) -> alt.LayerChart:
    """Return a chart, or one without layers if there is nothing to draw but notes.

    Args:
        name: Stem of the chart's file.
        looks: Look of each series that the legend names. A series without rows is left out.
        x, y: Results of `axis` and similar functions.
        about: Task, scale, hardware and n, below the title.
        notes: Sentences below the chart, or instead of it. Kept in `usermeta`.
    """
    rows = [row for layer in layers for row in layer.data.values]
    present = {row["series"]: None for row in rows if row.get("series")}
    looks = {series: value for series, value in looks.items() if series in present}
    named = dict.fromkeys((row["series"], row["text"]) for row in rows if row.get("series") and "text" in row)
    texts = [text for _, text in named]
    more = f"; and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    notes = [*dict.fromkeys(notes)] or ([] if layers else ["No data were measured."])
    with debug_mode(False):  # Altair would hold each part against its schema, which takes longer than drawing
        return alt.LayerChart(
            layer=[_legend(layers, looks, title), *layers] if layers else [],
            encoding={
                "x": alt.X("x:Q", **x),
                "y": alt.Y("y:Q", **(y | {"axis": y["axis"] | {"grid": True}})),
            },
            name=name,
            title=alt.TitleParams(title, subtitle=about),
            description=f"{title}. {'; '.join(texts[:MOST_NAMED])}{more}",
            usermeta={"notes": notes},
        )


def _legend(layers: Layers, looks: Mapping[str, Look], title: str) -> alt.Chart:
    """Return a layer without marks that has the scales and the legend of all others.

    One series that is called as the chart needs no legend.
    """
    widest = max(map(len, looks), default=1) + 5
    legend = {"title": None, "columns": max(1, min(len(looks), LEGEND_LETTERS // widest))}
    if list(looks) in ([], [title]):
        legend = None
    bars = any("left" in row for layer in layers for row in layer.data.values)
    channels: dict[str, Any] = {"fill": alt.Fill}
    if not bars:
        channels |= {"stroke": alt.Stroke, "shape": alt.Shape, "strokeDash": alt.StrokeDash}
    scales = {
        name: channel(
            "series:N",
            scale={"domain": list(looks), "range": [value[name] for value in looks.values()]},
            legend=legend if name != "strokeDash" else None,  # it would fray the symbols
            title=None,
        )
        for name, channel in channels.items()
    }
    empty = alt.Chart(alt.InlineData(values=[]))
    mark = empty.mark_rect if bars else empty.mark_point
    return mark(aria=False).encode(**scales)  # a screen reader would meet a picture without a word


# --- layers


def _data(rows: Iterable[Row]) -> alt.Chart:
    values = [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in ({"trace": row["series"]} | row if "series" in row else row).items()
        }
        for row in rows
    ]
    with debug_mode(False):
        return alt.Chart(alt.InlineData(values=values))


def _tooltip(rows: Sequence[Row]) -> list[alt.Tooltip]:
    shown = (("series", "series"), ("text", "value"))
    return [alt.Tooltip(f"{name}:N", title=title) for name, title in shown if name in rows[0]]


def line(rows: Sequence[Row], *, small: bool = False) -> Layers:
    """Return marks that are joined, with their intervals."""
    return [
        *intervals(rows),
        *plain_line(rows, width=1.3 if small else 2.0),
        *points(rows, size=28 if small else 70),
    ]


def plain_line(rows: Sequence[Row], *, width: float = 2.0) -> Layers:
    """Return lines without marks, e.g. a reference."""
    if not rows:
        return []
    return [
        _data(rows)
        .mark_line(strokeWidth=width)
        .encode(stroke="series:N", strokeDash="series:N", detail="trace:N")
    ]


def points(rows: Sequence[Row], *, size: int = 70, width: float = 1.4) -> Layers:
    """Return marks, with `size` in square pixels, and `width` of their outline in pixels."""
    if not rows:
        return []
    marks = _data(rows).mark_point(size=size, opacity=1, strokeWidth=width)
    return [marks.encode(stroke="series:N", fill="series:N", shape="series:N", tooltip=_tooltip(rows))]


def crosses(rows: Sequence[Row], *, size: int = 70) -> Layers:
    """Return the points that are excluded or missed the goal, crossed out."""
    return [layer.encode(shape=alt.value(CROSS)) for layer in points(rows, size=size, width=2.2)]


def rings(rows: Sequence[Row]) -> Layers:
    """Return a ring around each of the marks."""
    return points(rows, size=420, width=1.6)


def bars(rows: Sequence[Row]) -> Layers:
    """Return bars from `left` to `right` and from `base` to `top`."""
    if not rows:
        return []
    marks = _data(rows).mark_rect(stroke="white", strokeWidth=0.6)
    corners = {"x": "left:Q", "x2": "right:Q", "y": "base:Q", "y2": "top:Q"}
    return [marks.encode(**corners, fill="series:N", tooltip=_tooltip(rows))]


def band(rows: Sequence[Row]) -> Layers:
    """Return the area between `low` and `high`."""
    area = _data(rows).mark_area(opacity=0.2)
    return [area.encode(y="low:Q", y2="high:Q", fill="series:N")] if rows else []


def intervals(rows: Sequence[Row]) -> Layers:
    """Return error bars with caps. An open end has neither."""
    layers: Layers = []
    for along, names in (("y", ("low", "high")), ("x", ("x_low", "x_high"))):
        for end in names:
            if any(row.get(end) is not None for row in rows):
                data = _data(rows)  # Vega-Lite leaves out rows without this end
                place = {along: f"{end}:Q", "stroke": "series:N"}
                orient = "horizontal" if along == "y" else "vertical"
                layers += [
                    data.mark_rule(strokeWidth=1.2).encode(**place, **{f"{along}2": f"{along}:Q"}),
                    data.mark_tick(orient=orient, size=7, thickness=1.2).encode(**place),
                ]
    return layers


def texts(rows: Sequence[Row], *, below: bool = False, beside: bool = True) -> Layers:
    """Return the rows' `annotation`, right of their marks or, without `beside`, above them."""
    if not rows:
        return []
    place: dict[str, Any] = {"align": "left", "dx": 8, "dy": 13 if below else -9} if beside else {"dy": -7}
    return [_data(rows).mark_text(**place, fontSize=11, color=GREY).encode(text="annotation:N")]


# --- axes


def axis(
    title: str, *, ticks: Ticks = (), log: bool = False, limits: tuple[float, float | None] | None = None
) -> dict[str, Any]:
    """Return title, scale and axis of a position. Without ticks Vega chooses them.

    Args:
        title: With its unit.
        limits: The ends of the scale. An open upper end fits the data.
    """
    scale: dict[str, Any] = {"type": "log" if log else "linear", "nice": not (limits or ticks)}
    if not log:
        scale["zero"] = bool(limits and limits[0] == 0)
    if limits:
        low, high = limits
        scale |= {"domainMin": low} if high is None else {"domain": [low, high]}
    elif ticks and log:
        scale["domain"] = [ticks[0][0], ticks[-1][0]]
    shown: dict[str, Any] = {"grid": False, "tickCount": 6}
    if ticks:
        labels = [
            f"datum.value == {position!r} ? {json.dumps(text.split(chr(10)))} : " for position, text in ticks
        ]
        values = [position for position, _ in ticks]
        shown = {"grid": False, "values": values, "labelExpr": "".join(labels) + "''", "labelOverlap": False}
    return {"title": title, "scale": scale, "axis": shown}


def time_axis(title: str, most: float, limits: tuple[float, float | None]) -> dict[str, Any]:
    """Return a linear axis of durations up to `most` s, with ticks in seconds, minutes, hours or days."""
    if not math.isfinite(most) or most <= 2 * 60:
        return axis(f"{title} / s", limits=limits)
    unit, name = next((size, name) for size, name in UNITS if most > 2 * size)
    step = next(nice * unit for nice in STEPS if nice * unit * MOST_TICKS >= most)
    ticks = [(step * number, f"{step * number / unit:g}") for number in range(int(most / step) + 1)]
    return axis(f"{title} / {name}", ticks=ticks, limits=limits)


def worker_axis(counts: Iterable[int]) -> dict[str, Any]:
    """Return the axis of the number of workers: doubling is one step."""
    present = sorted(set(counts)) or [1]
    powers = [count for count in present if count & (count - 1) == 0]
    room = LABEL_SHARE * math.log(EDGE**2 * present[-1] / present[0])
    named: list[int] = []  # of neighbours that would overlap the ends and powers of two come first
    for count in [present[0], present[-1], *powers, *present]:
        if all(count == other or abs(math.log(count / other)) > room for other in named):
            named.append(count)
    ticks = [(float(count), str(count) if count in named else "") for count in present]
    return axis("workers k", ticks=ticks, log=True, limits=(present[0] / EDGE, present[-1] * EDGE))


# --- rows


def drawn(rows: Iterable[Row], *names: str) -> list[float]:
    """Return the values along an axis, e.g. of y, low and high, that can be drawn."""
    return [value for row in rows for name in names if drawable(value := row.get(name))]


def ends(estimate: MedianEstimate | Ratio, low: str = "low", high: str = "high", *, log: bool = False) -> Row:
    """Return the ends of an interval, with None for an end that the axis cannot show."""
    pairs = ((low, estimate.low), (high, estimate.high))
    return {name: value if drawable(value, log=log) else None for name, value in pairs}


def over_workers(
    series: str,
    measured: Iterable[tuple[Point, MedianEstimate | Ratio | None]],
    text: Callable[[Point, Any], str],
    *,
    shift: float,
    log: bool = False,
) -> list[Row]:
    """Return medians or ratios over workers with their intervals, without what the axis cannot show.

    Args:
        text: What a mark shows.
        shift: Where the marks are, as a factor of the number of workers (`side_by_side`).
    """
    return [
        {
            "series": series,
            "x": point.workers * shift,
            "y": estimate.value,
            "text": text(point, estimate),
            **ends(estimate, log=log),
        }
        for point, estimate in measured
        if estimate and drawable(estimate.value, log=log)
    ]


def side_by_side(counts: Iterable[int], marks: int) -> list[float]:
    """Return the factors that put so many marks of one number of workers side by side.

    However many they are, all stay nearer to their number than to any other of `counts`.
    """
    closest = min((more / fewer for fewer, more in pairwise(sorted(set(counts)))), default=math.inf)
    reach = min(EDGE**0.75, closest**SPREAD)  # inside the axis if there is only one number, too
    step = min(MARK_STEP, reach ** (2 / max(1, marks - 1)))
    return [step ** (index - (marks - 1) / 2) for index in range(marks)]

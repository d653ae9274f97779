"""Charts as plotly figures: plain JSON values, drawn in the reader's browser."""

import html
import math
from collections.abc import Sequence
from typing import Any

from mlbench.report.chart import Axis, Chart, Trace
from mlbench.report.figures import COLOURS, FILLS, MARKS, mark

LINE = 0.06  # height of a line of text below an axis, of the axes' height
GREY = "#808080"  # readable on white and on black
# plotly's names of figures.MARKS, in their order
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
PATTERNS = (".", "", "+", "/", "", "\\", "-", "x", "|", "x")  # as figures.HATCHES


def plotly(chart: Chart) -> dict[str, Any]:
    """Return data and layout of a chart; the page adds the colours of its light or dark scheme."""
    return {
        "data": [_trace(trace) for trace in chart.traces],
        "layout": {
            "xaxis": _axis(chart.x),
            "yaxis": _axis(chart.y),
            "barmode": "stack",
            "height": 430,
            "margin": {"l": 62, "r": 14, "t": 14, "b": 50},
            "hovermode": "closest",
            "hoverlabel": {"align": "left"},
            "legend": {
                "orientation": "h",
                "yanchor": "top",
                "y": -0.2 - LINE * max((text.count("\n") for _, text in chart.x.ticks), default=0),
                "x": 0,
                "font": {"size": 12},
            },
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
        },
    }


def _trace(trace: Trace) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "x": _numbers(trace.x),
        "y": _numbers(trace.y),
        "name": html.escape(trace.label),
        "showlegend": bool(trace.label),
        "hovertext": _escaped(trace.texts),
        "hoverinfo": "text" if trace.texts else "skip",
    }
    if trace.kind == "bars":
        pattern = {"shape": PATTERNS[trace.style], "fillmode": "overlay", "fgcolor": "#222222", "size": 6}
        look = {"color": FILLS[trace.style], "pattern": pattern, "line": {"color": "#222222", "width": 0.5}}
        return drawn | {"type": "bar", "width": trace.width, "marker": look}
    if trace.kind == "rule":
        return drawn | {"mode": "lines", "line": {"color": GREY, "dash": "dash", "width": 1.2}}
    if trace.kind == "texts":
        words = {"text": _escaped(trace.texts), "textposition": "top center", "hoverinfo": "skip"}
        return drawn | words | {"mode": "text"}
    if trace.kind == "ring":
        look = {"symbol": "circle-open", "size": 22, "color": GREY, "line": {"width": 1.5}}
        return drawn | {"mode": "markers", "marker": look}
    colour = COLOURS[trace.style % len(COLOURS)].replace("#000000", GREY)
    symbol = (
        "x-thin"
        if trace.cross
        else SYMBOLS[MARKS.index(mark(trace.style))] + ("-open" if trace.hollow else "")
    )
    drawn |= {
        "mode": ("lines+markers" if trace.kind == "line" else "markers") + ("+text" if trace.written else ""),
        "marker": {
            "symbol": symbol,
            "color": colour,
            "size": 6 if trace.small else 9,
            "line": {"color": colour, "width": 2.5 if trace.cross else 1.2},
        },
        "line": {
            "color": colour,
            "width": 1.2 if trace.small else 2,
            "dash": "2px,3px" if trace.hollow else DASHES[trace.style % len(DASHES)],
        },
    }
    if trace.written:
        drawn |= {"text": _escaped(trace.written), "textposition": "top right"}
    for name, values, low, high in (
        ("error_x", trace.x, trace.x_low, trace.x_high),
        ("error_y", trace.y, trace.low, trace.high),
    ):
        if any(end is not None for end in (*low, *high)):
            drawn[name] = {
                "type": "data",
                "symmetric": False,
                "array": _lengths(values, high),
                "arrayminus": _lengths(values, low),
                "thickness": 1.2,
                "width": 4,
            }
    return drawn


def _axis(axis: Axis) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        "title": {"text": html.escape(axis.label), "standoff": 8},
        "type": axis.kind,
        "zeroline": False,
        "automargin": True,
        "showline": True,
    }
    if axis.ticks:
        drawn["tickvals"] = [place for place, _ in axis.ticks]
        drawn["tickangle"] = 0
        drawn["ticktext"] = [html.escape(text).replace("\n", "<br>") for _, text in axis.ticks]
    if axis.limits and axis.limits[1] is None:
        drawn["rangemode"] = "tozero"
    elif axis.limits:
        low, high = axis.limits
        drawn["range"] = [math.log10(low), math.log10(high or 1)] if axis.kind == "log" else [low, high]
    return drawn


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _escaped(texts: Sequence[str]) -> list[str]:
    """Return texts that plotly shows as they are; it would read tags in them."""
    return [html.escape(text) for text in texts]


def _lengths(values: Sequence[float], ends: Sequence[float | None]) -> list[float]:
    return [
        abs(end - value) if end is not None and math.isfinite(end) else 0.0
        for value, end in zip(values, ends, strict=True)
    ]

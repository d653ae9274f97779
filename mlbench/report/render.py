"""Draw charts with Vega-Altair: one object becomes PNG, SVG and the interactive figure of a page.

Curves differ in mark and dash as well as in colour, so that they can be told apart in grey.
"""

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mlbench.analysis.chart import GREYED, Axis, Chart, Trace
from mlbench.report.style import COLOURS, CROSS, DASHES, DOTTED, GREY, SHAPES

Datasets = dict[str, list[dict[str, Any]]]  # rows by the name under which a drawing refers to them

WIDTH, HEIGHT = 620, 330  # pixels of the axes
SCALE = 2  # pixels of a PNG for one of the drawing
CHANNELS = ("stroke", "fill", "shape", "strokeDash")  # that the legend explains
INDEPENDENT: dict[str, Any] = dict.fromkeys(CHANNELS, "independent")
NOTE_LETTERS = 118  # letters in a line of notes below a chart
LEGEND_LETTERS = 105  # letters in a line of the legend
NOTE_LINE = 14  # pixels


def drawing(chart: Chart, datasets: Datasets, *, bare: bool = False) -> Any:
    """Return the chart as an Altair object, and put its rows into `datasets`, where Altair copies none.

    `bare` leaves out title and notes, for a page that has them.
    """
    import altair as alt

    if bare:
        return alt.layer(*_layers(alt, chart, datasets)).properties(width="container", height=HEIGHT)
    lines = [line for note in chart.notes for line in textwrap.wrap(note, NOTE_LETTERS)]
    title = alt.TitleParams(chart.title, subtitle=textwrap.wrap(chart.about, NOTE_LETTERS), anchor="start")
    notes = (
        alt.Chart(_named(alt, [{"text": "\n".join(lines)}], datasets))
        .mark_text(
            align="left", baseline="top", fontSize=11, color=GREY, lineBreak="\n", lineHeight=NOTE_LINE
        )
        .encode(x=alt.value(0), y=alt.value(0), text="text:N")
        .properties(width=WIDTH, height=NOTE_LINE * max(1, len(lines)), view=alt.ViewConfig(stroke=None))
    )
    if chart.empty:
        return alt.vconcat(notes.properties(title=title))
    layers = _layers(alt, chart, datasets)
    whole = alt.layer(*layers).properties(title=title, width=WIDTH, height=HEIGHT)
    together = alt.vconcat(whole, notes) if lines else alt.vconcat(whole)
    return together.resolve_scale(**INDEPENDENT)


def specification(chart: Chart) -> dict[str, Any]:
    """Return the Vega-Lite specification of the figure in a page."""
    datasets: Datasets = {}
    with _unchecked():
        values = drawing(chart, datasets, bare=True).configure(**_config()).to_dict(validate=False)
    return values | {"datasets": datasets}


def svg(specification: dict[str, Any]) -> str:
    """Return the figure of a page as a picture, for readers without scripts and for print."""
    import vl_convert

    config = specification["config"] | {"background": "white"}
    return vl_convert.vegalite_to_svg(specification | {"width": WIDTH, "config": config})


def png(charts: Sequence[Chart], *, columns: int = 1) -> bytes:
    """Return the charts as one PNG, below each other or in columns."""
    import altair as alt
    import vl_convert

    datasets: Datasets = {}
    with _unchecked():
        whole = alt.concat(*(drawing(chart, datasets) for chart in charts), columns=columns, spacing=36)
        whole = whole.resolve_scale(**INDEPENDENT)
        whole = whole.configure(background="white", padding=12, **_config())
        values = whole.to_dict(validate=False)
    return vl_convert.vegalite_to_png(values | {"datasets": datasets}, scale=SCALE)


def save(charts: Sequence[Chart], path: Path, *, columns: int = 1) -> None:
    """Write the charts into a PNG file."""
    path.write_bytes(png(charts, columns=columns))


def _unchecked() -> AbstractContextManager[None]:
    """Keep Altair from holding every part of a drawing against its schema, which takes longer than drawing.

    The tests hold whole drawings against it.
    """
    from altair.utils.schemapi import debug_mode

    return debug_mode(False)


def _config() -> dict[str, Any]:
    return {
        "view": {"stroke": None},
        "axis": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal", "gridColor": "#8883"},
        "legend": {
            "orient": "bottom",
            "labelFontSize": 11,
            "labelLimit": 0,
            "symbolSize": 70,
            "symbolOpacity": 1,
            "symbolDash": [1, 0],
        },
        "title": {"fontSize": 15, "subtitleFontSize": 11, "subtitleColor": GREY, "offset": 12},
        "font": "DejaVu Sans, system-ui, sans-serif",
    }


def _named(alt: Any, rows: list[dict[str, Any]], datasets: Datasets) -> Any:
    name = f"data-{len(datasets)}"
    datasets[name] = rows
    return alt.NamedData(name)


def _layers(alt: Any, chart: Chart, datasets: Datasets) -> list[Any]:
    """Return the layers of the chart; traces that look alike share theirs."""
    alike: dict[tuple, list[tuple[int, Trace]]] = {}
    for number, trace in enumerate(chart.traces):
        own = None if trace.label else trace.style  # without a label no scale has its look
        look = (trace.kind, trace.secondary, trace.excluded, trace.small, own)
        alike.setdefault(look, []).append((number, trace))
    legend = _legend(alt, chart)
    return [layer for traces in alike.values() for layer in _layer(alt, chart, traces, legend, datasets)]


def _layer(
    alt: Any, chart: Chart, traces: list[tuple[int, Trace]], legend: dict[str, Any], datasets: Datasets
) -> list[Any]:
    """Return marks, lines and intervals of traces that look alike."""
    trace = traces[0][1]
    rows = [
        row | {"trace": number, "series": trace.label} for number, trace in traces for row in _rows(trace)
    ]
    data = alt.Chart(_named(alt, rows, datasets))
    x, y = _position(alt, chart.x, "x"), _position(alt, chart.y, "y")
    tooltip = [alt.Tooltip("series:N", title="series")] if trace.label else []
    tooltip += [alt.Tooltip("text:N", title="value")] if trace.texts else []
    look = _look(alt, trace, legend)
    stroke = {"stroke": look["stroke"]}
    if trace.kind == "bars":
        columns = {"x": alt.X("left:Q", **x), "x2": "right:Q", "y": alt.Y("base:Q", **y), "y2": "top:Q"}
        bars = data.mark_rect(stroke="white", strokeWidth=0.6)
        return [bars.encode(**columns, fill=look["fill"], tooltip=tooltip)]
    channels = {"x": alt.X("x:Q", **x), "y": alt.Y("y:Q", **y)}
    if trace.kind == "labels":
        return [data.mark_text(dy=-7, fontSize=11, color=GREY).encode(**channels, text="text:N")]
    if trace.kind == "band":
        band = data.mark_area(opacity=0.2)
        return [band.encode(x=channels["x"], y=alt.Y("low:Q", **y), y2="high:Q", fill=look["fill"])]
    line = data.mark_line(strokeWidth=1.3 if trace.small else 2.0)
    line = line.encode(**channels, **stroke, strokeDash=look["strokeDash"], detail="trace:N")
    if trace.kind == "reference_line":
        return [line]
    stroke |= {"fill": look["fill"], "shape": look["shape"]}
    if trace.kind == "highlight":
        ring = data.mark_point(size=420, opacity=1, strokeWidth=1.6)
        return [ring.encode(**channels, **stroke, tooltip=tooltip)]
    marks = data.mark_point(
        size=28 if trace.small else 70,
        opacity=1,
        strokeWidth=2.2 if trace.excluded else 1.4,
    )
    return [
        *_intervals(alt, data, rows, channels, look["stroke"]),
        *([line] if trace.kind == "line" else []),
        marks.encode(**channels, **stroke, tooltip=tooltip),
        *_annotations(alt, rows, channels, datasets),
    ]


def _rows(trace: Trace) -> list[dict[str, Any]]:
    """Return one row of plain JSON values a mark."""
    names = ("x", "y", "low", "high", "x_low", "x_high")
    columns: dict[str, Sequence[Any]] = {name: getattr(trace, name) for name in names}
    columns |= {"text": trace.texts, "annotation": trace.annotations}
    if trace.annotations:
        columns["below"] = [trace.style % 2 == 1] * len(trace.x)  # two curves do not overwrite each other
    if trace.kind == "bars":
        columns |= {
            "left": [x - trace.width / 2 for x in trace.x],
            "right": [x + trace.width / 2 for x in trace.x],
            "base": trace.base,
            "top": [base + y for base, y in zip(trace.base, trace.y, strict=True)],
        }
    present = {name: values for name, values in columns.items() if len(values)}
    return [
        {name: _finite(value) for name, value in zip(present, row, strict=True)}
        for row in zip(*present.values(), strict=True)
    ]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _intervals(
    alt: Any, data: Any, rows: list[dict[str, Any]], channels: dict[str, Any], stroke: Any
) -> Iterator[Any]:
    """Yield error bars with caps for the axes that have intervals."""
    for along, across, low, high in (("y", "x", "low", "high"), ("x", "y", "x_low", "x_high")):
        if not any(row.get(low) is not None or row.get(high) is not None for row in rows):
            continue
        ends = data.transform_calculate(
            **{
                end: f"isValid(datum['{column}']) ? datum['{column}'] : datum['{along}']"
                for end, column in (("start", low), ("end", high))
            }
        )
        channel = {"y": alt.Y, "x": alt.X}[along]
        same = {name: channels[along][name] for name in ("scale", "axis", "title")}
        common = {across: channels[across], "stroke": stroke}
        bar = {along: channel("start:Q", **same), f"{along}2": "end:Q"}
        yield ends.mark_rule(strokeWidth=1.2).encode(**common, **bar)
        for end, column in (("start", low), ("end", high)):
            closed = ends.transform_filter(f"isValid(datum['{column}'])")  # an open end has no cap
            cap = closed.mark_tick(orient="horizontal" if along == "y" else "vertical", size=7, thickness=1.2)
            yield cap.encode(**common, **{along: channel(f"{end}:Q", **same)})


def _annotations(
    alt: Any, rows: list[dict[str, Any]], channels: dict[str, Any], datasets: Datasets
) -> Iterator[Any]:
    for below, dy in ((False, -9), (True, 13)):
        some = [row for row in rows if "annotation" in row and row["below"] == below]
        if some:
            text = alt.Chart(_named(alt, some, datasets))
            text = text.mark_text(align="left", dx=8, dy=dy, fontSize=11, color=GREY)
            yield text.encode(**channels, text="annotation:N")


def _position(alt: Any, axis: Axis, name: str) -> dict[str, Any]:
    """Return scale, axis and title of a position channel."""
    scale: dict[str, Any] = {"type": axis.kind, "nice": not (axis.limits or axis.ticks)}
    if axis.kind == "linear":
        scale["zero"] = bool(axis.limits and axis.limits[0] == 0)
    if axis.limits:
        low, high = axis.limits
        scale |= {"domainMin": low} if high is None else {"domain": [low, high]}
    elif axis.ticks and axis.kind == "log":
        scale["domain"] = [axis.ticks[0][0], axis.ticks[-1][0]]
    shown: dict[str, Any] = {"grid": name == "y"}
    if axis.ticks:
        texts = [(position, json.dumps(text.split("\n"))) for position, text in axis.ticks]
        shown |= {
            "values": [position for position, _ in axis.ticks],
            "labelExpr": "".join(f"datum.value == {position!r} ? {text} : " for position, text in texts)
            + "''",
            "labelOverlap": False,
        }
    else:
        shown["tickCount"] = 6
    return {"scale": alt.Scale(**scale), "axis": alt.Axis(**shown), "title": axis.label}


def _look(alt: Any, trace: Trace, legend: dict[str, Any]) -> dict[str, Any]:
    """Return the channels that the legend explains; values in place of scales where there is no label."""
    channels = {"stroke": alt.Stroke, "fill": alt.Fill, "shape": alt.Shape, "strokeDash": alt.StrokeDash}
    if trace.label:
        return {name: channel("series:N", **legend[name]) for name, channel in channels.items()}
    return {name: alt.value(value) for name, value in _values_of(trace).items()}


def _legend(alt: Any, chart: Chart) -> dict[str, Any]:
    """Return scales and legend of the channels, which all have the labels as their domain."""
    styles: dict[str, Trace] = {}
    for trace in chart.traces:
        if trace.label:
            styles.setdefault(trace.label, trace)
    labels = list(styles)
    widest = max((len(label) for label in labels), default=1) + 5
    legend = alt.Legend(title=None, columns=max(1, min(len(labels), LEGEND_LETTERS // widest)))
    looks = [_values_of(trace) for trace in styles.values()]
    bars = any(trace.kind == "bars" for trace in chart.traces)
    shown = {"fill"} if bars else {"stroke", "fill", "shape"}  # a dash would fray the legend's symbols
    return {
        name: {
            "scale": alt.Scale(domain=labels, range=[look[name] for look in looks]),
            "legend": legend if name in shown else None,
            "title": None,
        }
        for name in CHANNELS
    }


def _values_of(trace: Trace) -> dict[str, Any]:
    colour, shape = COLOURS[trace.style % len(COLOURS)], SHAPES[trace.style % len(SHAPES)]
    dash = DOTTED if trace.secondary else DASHES[trace.style % len(DASHES)]
    if trace.kind == "bars" and trace.style >= len(COLOURS):
        colour = _tint(colour)
    if trace.kind == "reference_line":
        colour, shape, dash = GREY, "stroke", [5, 4]
    if trace.kind == "highlight":
        colour, shape = GREY, "circle"
    if trace.style == GREYED:
        colour = GREY
    hollow = trace.secondary or trace.kind == "highlight"
    return {
        "stroke": colour,
        "fill": "transparent" if hollow else colour,
        "shape": CROSS if trace.excluded else shape,
        "strokeDash": dash,
    }


def _tint(colour: str) -> str:
    """Return a lighter colour, for the parts of a bar beyond the eighth."""
    parts = (int(colour[offset : offset + 2], 16) for offset in (1, 3, 5))
    return "#" + "".join(f"{(part + 2 * 255) // 3:02x}" for part in parts)

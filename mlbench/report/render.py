"""Render charts with one theme as PNG, SVG and the interactive figure of a page."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from altair.utils.schemapi import debug_mode

from mlbench.analysis.marks import GREY

WIDTH, HEIGHT = 620, 330  # pixels of the axes
SCALE = 2  # pixels of a PNG for one of the drawing
INDEPENDENT: dict[str, Any] = dict.fromkeys(("stroke", "fill", "shape", "strokeDash"), "independent")
NOTE_LETTERS = 118  # letters in a line of notes below a chart
THEME: dict[str, Any] = {
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
    "title": {
        "anchor": "start",
        "fontSize": 15,
        "subtitleFontSize": 11,
        "subtitleColor": GREY,
        "offset": 12,
    },
    "font": "DejaVu Sans, system-ui, sans-serif",
}


def specification(chart: alt.LayerChart) -> dict[str, Any]:
    """Return the Vega-Lite specification of the figure in a page, which has title and notes itself."""
    with debug_mode(False):  # Altair would hold each part against its schema, which takes longer than drawing
        values = chart.configure(**THEME).to_dict(validate=False)
    shown = {name: value for name, value in values.items() if name not in ("name", "title", "usermeta")}
    return {"width": "container", "height": HEIGHT} | shown  # a chart may have its size


def svg(specification: dict[str, Any]) -> str:
    """Return the figure of a page as a picture, for readers without scripts and for print."""
    config = specification["config"] | {"background": "white"}
    width = WIDTH if specification["width"] == "container" else specification["width"]
    return vl_convert.vegalite_to_svg(specification | {"width": width, "config": config})


def png(charts: Sequence[alt.LayerChart], *, columns: int = 1) -> bytes:
    """Return the charts as one PNG, below each other or in columns."""
    with debug_mode(False):
        whole = alt.concat(*map(_with_notes, charts), columns=columns, spacing=36)
        whole = whole.resolve_scale(**INDEPENDENT).configure(background="white", padding=12, **THEME)
        return vl_convert.vegalite_to_png(whole.to_dict(validate=False), scale=SCALE)


def save(charts: Sequence[alt.LayerChart], path: Path, *, columns: int = 1) -> None:
    """Write the charts into a PNG file."""
    path.write_bytes(png(charts, columns=columns))


def _with_notes(chart: alt.LayerChart) -> alt.VConcatChart:
    """Return the chart with its notes below it, or the notes instead of a chart without layers."""
    about = textwrap.wrap(chart.title.subtitle, NOTE_LETTERS)
    title = alt.TitleParams(chart.title.text, subtitle=about)
    notes = [line for note in chart.usermeta["notes"] for line in textwrap.wrap(note, NOTE_LETTERS)]
    shown = {"text": notes, "orient": "bottom", "color": GREY, "fontSize": 11, "fontWeight": "normal"}
    body = alt.LayerChart(layer=chart.layer, encoding=chart.encoding, width=WIDTH, height=HEIGHT)
    if not chart.layer:
        body = alt.Chart(alt.Data(values=[]), mark="point", width=WIDTH, height=1)
    whole = alt.VConcatChart(vconcat=[body.properties(title=title)])
    return (whole.properties(title=alt.TitleParams(**shown)) if notes else whole).resolve_scale(**INDEPENDENT)

"""What a chart shows, read from its Vega-Lite specification."""

from typing import Any

import altair as alt

Row = dict[str, Any]


def series(chart: alt.LayerChart) -> dict[str, list[Row]]:
    """Return the rows of each series by its label, in the order in which they are drawn."""
    found: dict[str, list[Row]] = {}
    for mark in ("area", "point", "rect", "line"):  # a line with marks has the same rows twice
        rows: dict[str, list[Row]] = {}
        for row in marked(chart, mark):
            rows.setdefault(row["series"], []).append(row)
        found |= {label: some for label, some in rows.items() if label not in found}
    return found


def marked(chart: alt.LayerChart, mark: str) -> list[Row]:
    """Return the rows of all layers with this mark: point, line, rect, area, text, tick or rule."""
    specification = chart.to_dict(validate=False)
    layers = [layer for layer in specification["layer"] if layer["mark"]["type"] == mark]
    datasets = specification["datasets"]
    return [row for layer in layers for row in datasets[layer["data"]["name"]]]


def column(rows: list[Row], name: str) -> list[Any]:
    return [row[name] for row in rows]


def looks(chart: alt.LayerChart, channel: str) -> dict[str, str]:
    """Return the shape, fill, stroke or dash of each series in the legend."""
    scale = chart.to_dict(validate=False)["layer"][0]["encoding"][channel]["scale"]
    return dict(zip(scale["domain"], scale["range"], strict=True))


def axis(chart: alt.LayerChart, name: str) -> dict[str, Any]:
    """Return title, scale and ticks of x or y."""
    return chart.to_dict(validate=False)["encoding"][name]


def notes(chart: alt.LayerChart) -> list[str]:
    return chart.usermeta["notes"]

"""Draw submissions below each other with their 95 % intervals, so narrow that a phone shows the letters."""

from collections.abc import Sequence

import altair as alt

from mlbench.analysis import marks
from mlbench.analysis.bootstrap import drawable
from mlbench.analysis.points import MedianEstimate
from mlbench.record.format import quantity

WIDTH, ROW = 340, 42  # pixels of the axis, and from one submission to the next
ROOM = 1.06  # of the axis beyond the largest end of an interval


TITLES = {"time": "Time to accuracy, left is faster", "cost": "Cost of the goal, left is cheaper"}


def ranking(name: str, rows: Sequence[tuple[str, MedianEstimate | None]]) -> alt.LayerChart:
    """Return the medians by label, the first on top: `time` in s, or `cost` in USD.

    A note names the rows without a value.
    """
    title, unit = TITLES[name], "s" if name == "time" else "USD"
    shown = [(label, value) for label, value in rows if value and drawable(value.value)]
    texts = [f"{quantity(value.value, unit)}: {label}" for label, value in shown]
    drawn = [
        {"series": title, "x": value.value, "y": -place, "text": text} | marks.ends(value, "x_low", "x_high")
        for place, (text, (_, value)) in enumerate(zip(texts, shown, strict=True))
    ]
    most = ROOM * max(marks.drawn(drawn, "x", "x_high"), default=1.0)
    x = (
        marks.time_axis("time", most, (0, most))
        if unit == "s"
        else marks.axis("cost / USD", limits=(0, most))
    )
    y = marks.axis(
        "", ticks=[(-place, text) for place, text in enumerate(texts)], limits=(0.5 - len(shown), 0.9)
    )
    above = {"labelAlign": "left", "labelPadding": -2, "labelOffset": -14, "labelLimit": WIDTH}
    y |= {"title": None, "axis": y["axis"] | above | {"ticks": False, "domain": False}}
    without = ", ".join(label for label, value in rows if not value)
    notes = [f"No price given: {without}."] if without and shown else []
    layers = [*marks.intervals(drawn), *marks.points(drawn)]
    chart = marks.chart(name, title, layers, looks={title: marks.look(0)}, x=x, y=y, notes=notes)
    return chart.properties(width=WIDTH, height=ROW * len(shown))

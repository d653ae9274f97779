"""Charts as matplotlib figures, for files, print and readers without scripts.

Families differ in mark, dash and hatching as well as in colour, so that they can be told apart in grey.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlbench.report.chart import Axis, Chart, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES = (7.6, 4.6)  # of one chart
EMPTY = 0.45  # of that height for one that has words alone
TITLE = 0.065  # of that height
LINES_IN_EMPTY, BIG_LINE = 6, 0.04  # lines that fit there; of that height for each more
LINES_BELOW, SMALL_LINE = 2, 0.027  # likewise below a chart
DOTS_PER_INCH = 150
# Okabe and Ito 2008, "Color universal design": told apart with every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
FILLS = (
    "#F0E442",
    "#56B4E9",
    "#999999",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#ffffff",
    "#444444",
)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
HATCHES = ("..", "", "++", "//", "", "\\\\", "--", "xx", "oo", "**")
WORDS_WIDE = 104  # letters in a line below a chart
BIG_WORDS_WIDE = 64  # likewise in place of one
GREY = "#555555"


def mark(style: int) -> str:
    """Return the mark of a family; where colours come again, marks do not."""
    return MARKS[(style + style // len(COLOURS)) % len(MARKS)]


def figure(charts: Sequence[Chart], *, bare: bool = False) -> "Figure":
    """Return the charts below each other as one figure; `bare` leaves out title and words."""
    from matplotlib.figure import Figure

    heights = [_height(chart, bare=bare) for chart in charts]
    inches = INCHES[0], INCHES[1] * sum(heights)
    drawn = Figure(figsize=inches, dpi=DOTS_PER_INCH, layout="constrained")
    places = drawn.subfigures(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for place, chart in zip(places, charts, strict=True):
        _draw(place, chart, bare=bare)
    return drawn


def _height(chart: Chart, *, bare: bool) -> float:
    """Return a chart's height, in INCHES[1]: words have room of their own."""
    if chart.empty:
        return EMPTY + BIG_LINE * max(0, len(_lines(chart.words, BIG_WORDS_WIDE)) - LINES_IN_EMPTY)
    return 1.0 if bare else 1.0 + SMALL_LINE * max(0, len(_lines(chart.words, WORDS_WIDE)) - LINES_BELOW)


def _lines(words: Sequence[str], wide: int) -> list[str]:
    return [line for sentence in words for line in textwrap.wrap(_plain(sentence), wide)]


def _draw(place: Any, chart: Chart, *, bare: bool) -> None:
    axes = place.add_subplot()
    if not bare:
        below = 1 - TITLE / _height(chart, bare=bare)
        place.suptitle(f"{_plain(chart.title)}\n", fontsize=12, fontweight="bold", x=0.01, ha="left")
        about = {"fontsize": 9, "color": GREY, "va": "top", "transform": place.transSubfigure}
        place.text(0.01, below, _plain(chart.about), **about)
    if chart.empty:
        axes.set_axis_off()
        said = "\n".join(_lines(chart.words, BIG_WORDS_WIDE))
        axes.text(0.5, 0.4, said, ha="center", va="center", fontsize=11, transform=axes.transAxes)
        return
    for trace in chart.traces:
        _TRACES[trace.kind](axes, trace)
    _scale(axes, chart.x, "x")
    _scale(axes, chart.y, "y")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    if any(trace.label for trace in chart.traces):
        axes.legend(
            frameon=False,
            fontsize=8.5,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
            handlelength=2.6,
            reverse=any(trace.kind == "bars" for trace in chart.traces),
        )
    if chart.words and not bare:
        said = "\n".join(_lines(chart.words, WORDS_WIDE))
        place.supxlabel(said, fontsize=7.5, color=GREY, x=0.01, ha="left")


def _plain(text: str) -> str:
    """Return a text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def _scale(axes: "Axes", axis: Axis, name: str) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    one = axes.xaxis if name == "x" else axes.yaxis
    if axis.kind == "log":
        (axes.set_xscale if name == "x" else axes.set_yscale)("log")
    if axis.ticks:
        one.set_major_locator(FixedLocator([place for place, _ in axis.ticks]))
        one.set_ticklabels([_plain(text) for _, text in axis.ticks])
        one.set_minor_locator(NullLocator())
    if axis.limits:
        (axes.set_xlim if name == "x" else axes.set_ylim)(*axis.limits)
    one.set_label_text(_plain(axis.label), fontsize=9.5)
    one.set_tick_params(labelsize=9)


def _marks(axes: "Axes", trace: Trace) -> None:
    colour = COLOURS[trace.style % len(COLOURS)]
    size = 4.0 if trace.small else 6.5
    look: dict[str, Any] = {
        "color": colour,
        "marker": "x" if trace.cross else mark(trace.style),
        "markersize": size + 1.5 if trace.cross else size,
        "markerfacecolor": "white" if trace.hollow else colour,
        "markeredgewidth": 1.8 if trace.cross else 1.1,
        "linestyle": "none",
        "linewidth": 1.1 if trace.small else 1.6,
        "alpha": 0.85 if trace.small else 1.0,
    }
    if trace.kind == "line":
        look["linestyle"] = (0, (2, 2)) if trace.hollow else DASHES[trace.style % len(DASHES)]
    axes.errorbar(
        trace.x,
        trace.y,
        xerr=_lengths(trace.x, trace.x_low, trace.x_high),
        yerr=_lengths(trace.y, trace.low, trace.high),
        label=_plain(trace.label) or None,
        capsize=3,
        elinewidth=1,
        **look,
    )
    for x, y, text in zip(trace.x, trace.y, trace.written, strict=bool(trace.written)):
        below = -14 if trace.style % 2 else 7  # points; two families do not write on each other
        axes.annotate(_plain(text), (x, y), xytext=(7, below), textcoords="offset points", fontsize=9)


def _bars(axes: "Axes", trace: Trace) -> None:
    axes.bar(
        trace.x,
        trace.y,
        bottom=trace.base,
        width=trace.width,
        label=_plain(trace.label),
        color=FILLS[trace.style],
        hatch=HATCHES[trace.style],
        edgecolor="#222222",
        linewidth=0.5,
    )


def _rule(axes: "Axes", trace: Trace) -> None:
    axes.plot(trace.x, trace.y, color=GREY, linestyle=(0, (4, 3)), linewidth=1.1, label=_plain(trace.label))


def _ring(axes: "Axes", trace: Trace) -> None:
    axes.plot(
        trace.x,
        trace.y,
        "o",
        markersize=17,
        markerfacecolor="none",
        markeredgecolor="black",
        label=_plain(trace.label),
    )


def _texts(axes: "Axes", trace: Trace) -> None:
    for x, y, text in zip(trace.x, trace.y, trace.texts, strict=True):
        axes.annotate(
            _plain(text), (x, y), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=9
        )


_TRACES = {"line": _marks, "marks": _marks, "bars": _bars, "rule": _rule, "ring": _ring, "texts": _texts}


def _lengths(
    values: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]
) -> list[list[float]] | None:
    """Return the error bars' lengths below and above; none where there is no interval."""
    if not any(end is not None for end in (*low, *high)):
        return None

    def length(value: float, end: float | None) -> float:
        return abs(value - end) if end is not None and math.isfinite(end) else 0.0

    return [[length(value, end) for value, end in zip(values, some, strict=True)] for some in (low, high)]

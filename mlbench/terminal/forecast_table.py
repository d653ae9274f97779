"""A prediction as a table for people."""

import math
from collections.abc import Callable, Sequence
from statistics import median

from mlbench.prediction.forecast import Forecast, Interval, Target
from mlbench.prediction.runs import Measurements
from mlbench.record import format
from mlbench.terminal import tables

# The columns by importance: a narrow terminal gets the first ones.
ORDER = (
    "workers",
    "predicted",
    "95 % interval",
    "measured",
    "cost",
    "speed-up",
    "speed-up interval",
    "communication",
)
GAP = 2  # blanks between two columns


def text(
    forecasts: Sequence[Forecast],
    everything: Measurements,
    *,
    fitted: Measurements,
    target: Target,
    width: int,
) -> str:
    """Return one line per number of workers; measured medians stand beside it where the target has any.

    Columns that `width` has no room for are left out, and named.
    """
    measured = _medians(everything, fitted) if target == Target() else {}
    rows = [_row(one, measured.get(one.workers, "")) for one in forecasts]
    known = [name for name in ORDER if any(row[name] for row in rows)]
    room, shown = width + GAP, []
    for name in known:
        room -= GAP + max(len(name), *(len(row[name]) for row in rows))
        if room < 0:
            break
        shown.append(name)
    headings = [name for name in rows[0] if name in shown]
    cells = [[row[name] for name in headings] for row in rows]
    table = tables.table(headings, cells, right=[True] * len(headings))
    if hidden := known[len(shown) :]:
        table += f"\n{width} columns have no room for: {', '.join(hidden)} (--json has all)"
    return table + ("\n* measured, but not fitted" if any("*" in cell for cell in measured.values()) else "")


def _medians(everything: Measurements, fitted: Measurements) -> dict[int, str]:
    """Return the measured medians by number of workers, starred where they were not fitted."""
    medians = {k: median(everything.times(k)) for k in everything.counts}
    return {
        k: (format.duration(s) if math.isfinite(s) else "missed") + ("" if k in fitted.counts else " *")
        for k, s in medians.items()
    }


def _row(one: Forecast, measured: str) -> dict[str, str]:
    """Return the cells of a line by their heading; a column that is empty in all lines is left out."""
    return {
        "workers": f"{one.workers:,}",
        "measured": measured,
        "predicted": format.duration(one.time_s.value),
        "95 % interval": _ends(one.time_s, format.duration),
        "speed-up": f"{one.speedup.value:.2f}",
        "speed-up interval": _ends(one.speedup, lambda value: f"{value:.2f}"),
        "cost": format.usd(one.cost_usd.value) if one.cost_usd else "",
        "communication": format.percent(one.communication_share),
    }


def _ends(estimate: Interval, write: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{write(estimate.low)} to {write(estimate.high)}"

"""Draw heat maps over bandwidth and delay, and performance profiles, of a study over emulated networks."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mlbench.analysis.bootstrap import drawable, median
from mlbench.plugins.emulation.networks import SettingRuns, performance_profiles

if TYPE_CHECKING:
    import altair as alt

MAPS = (
    ("step_s", "s per step"),
    ("time_to_accuracy", "s to the goal"),
    ("exposed", "exposed communication, share of a step"),
)


def row(cell: SettingRuns) -> dict[str, Any]:
    """Return a cell as a row of a table: the values of its runs and their medians."""
    lists = ("step_s", "time_to_accuracy", "exposed", "predicted_s")
    medians = {f"{name}_median": _median(getattr(cell, name)) for name in lists}
    return asdict(cell) | medians | {"prediction_error": cell.error}


def chart(cells: Sequence[SettingRuns], *, about: str) -> "alt.VConcatChart":
    """Return a heat map per quantity, sync strategy and number of workers, and the profiles."""
    import altair as alt

    rows = [
        {
            "bandwidth": f"{cell.bandwidth_mbit_s:g}",
            "delay": f"{cell.delay_ms:g}",
            "panel": f"{cell.task}, k = {cell.workers}, {cell.sync}",
            **{
                name: value if drawable(value := _median(getattr(cell, name)), log=False) else None
                for name, _ in MAPS
            },
        }
        for cell in cells
    ]
    parts: list[Any] = []
    bandwidths = [f"{bandwidth:g}" for bandwidth in sorted({cell.bandwidth_mbit_s for cell in cells})]
    delays = [f"{delay:g}" for delay in sorted({cell.delay_ms for cell in cells})]
    for name, title in MAPS:
        base = alt.Chart(alt.Data(values=rows)).encode(
            x=alt.X("bandwidth:N", sort=bandwidths, title="bandwidth, Mbit/s"),
            y=alt.Y("delay:N", sort=delays, title="delay one way, ms"),
        )
        kind = "linear" if name == "exposed" else "log"
        scale = alt.Scale(type=kind, scheme="viridis")
        light = _middle([row[name] for row in rows if row[name] is not None], kind)
        ink = alt.condition(alt.datum[name] > light, alt.value("black"), alt.value("white"))
        tiles = base.mark_rect().encode(
            color=alt.Color(f"{name}:Q", scale=scale, title=title, legend=alt.Legend(titleLimit=0))
        )
        texts = base.mark_text().encode(text=alt.Text(f"{name}:Q", format=".2g"), color=ink)
        parts.append(
            alt.layer(tiles, texts)
            .properties(width=180, height=120)
            .facet(alt.Facet("panel:N", title=None), columns=3, title=title)
        )
    steps = [
        {"tau": tau, "share": share, "sync": name}
        for name, profile in performance_profiles(cells).items()
        for tau, share in profile
    ]
    if steps:
        profile = alt.Chart(alt.Data(values=steps)).mark_line(interpolate="step-after", point=True)
        parts.append(
            profile.encode(
                x=alt.X("tau:Q", title="tau, times the best strategy's time to the goal"),
                y=alt.Y("share:Q", title="share of problems solved", scale=alt.Scale(domain=[0, 1])),
                color=alt.Color("sync:N", title=None),
            ).properties(width=400, height=200, title="performance profiles")
        )
    title = f"{about}: emulated networks"
    return alt.vconcat(*parts, title=title).resolve_scale(color="independent")


def _middle(values: Sequence[float], kind: str) -> float:
    """Return the middle value of a colour scale, above which its colours are light."""
    if not values:
        return 0.0
    low, high = min(values), max(values)
    return math.sqrt(low * high) if kind == "log" else (low + high) / 2


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None

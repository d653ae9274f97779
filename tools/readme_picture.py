"""Draws the picture of README.md, docs/images/workers.svg: `python tools/readme_picture.py`.

Marks are the runs of GNMT that MLBench published (mlbench/analysis/tables/mlbench-2021-runs.csv), on nodes
with one T4 each and at their price of that day; lines and bands are what `mlbench predict
published:gnmt` prints.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from mlbench.analysis import marks
from mlbench.plugins.prediction import forecast, model, published_runs, source
from mlbench.plugins.prediction.forecast import PredictedInterval
from mlbench.plugins.prediction.model import Measurements
from mlbench.record import cost
from mlbench.record.format import duration, usd
from mlbench.report import render
from mlbench.report.charts.phases import stacked

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "workers.svg"
TASK = "gnmt"
MOST_WORKERS = 32  # twice what was measured
WIDTH, HEIGHT = 236, 220  # pixels of the axes of each chart
ROOM = 1.06  # of an axis above what is drawn
EDGE = 1.15  # factor from the ends of an axis of workers to the least and the largest number
BAR = 0.7  # of the distance between two bars
BAND = marks.look(5) | {"shape": "square"}  # light blue


def charts() -> list[alt.LayerChart]:
    """Return time and cost to the goal over workers with their 95 % bands, and the parts of a step."""
    runs = published_runs.measurements(TASK)
    fit = model.fit(runs)
    forecasts = forecast.forecast(fit, source.worker_counts(fit, runs, MOST_WORKERS))
    counts = [prediction.workers for prediction in forecasts]
    times = [prediction.time_s for prediction in forecasts]
    costs = [prediction.cost_usd for prediction in forecasts if prediction.cost_usd]
    assert len(costs) == len(counts) and runs.hardware.price is not None
    measured = {run.workers: run.total_s for run in runs.runs}
    usd_per_hour = runs.hardware.price.usd_per_hour
    paid = {k: cost.usd(s, cost.nodes(runs.hardware, k), usd_per_hour) for k, s in measured.items()}
    hours, dollars = (
        ROOM * max(estimate.high or estimate.value for estimate in some) for some in (times, costs)
    )
    return [
        _curve(
            "Time to BLEU 24", marks.time_axis("time", hours, (0, hours)), counts, times, measured, duration
        ),
        _curve("Cost of BLEU 24", marks.axis("cost / USD", limits=(0, dollars)), counts, costs, paid, usd),
        _steps(runs),
    ]


def _curve(
    title: str,
    y: dict[str, Any],
    workers: Sequence[int],
    predicted: Sequence[PredictedInterval],
    measured: dict[int, float],
    text: Callable[[float], str],
) -> alt.LayerChart:
    line = [
        {"series": "predicted", "x": k, "y": estimate.value, "text": text(estimate.value)}
        for k, estimate in zip(workers, predicted, strict=True)
    ]
    band = [
        {"series": "95 % interval", "x": k, "y": estimate.value, "low": estimate.low, "high": estimate.high}
        for k, estimate in zip(workers, predicted, strict=True)
    ]
    points = [{"series": "measured", "x": k, "y": value} for k, value in measured.items()]
    limits = (workers[0] / EDGE, workers[-1] * EDGE)
    return marks.chart(
        title,
        title,
        [*marks.band(band), *marks.line(line, small=True), *marks.points(points)],
        looks={"95 % interval": BAND, "predicted": marks.look(0), "measured": marks.look(1)},
        x=marks.axis("workers", ticks=[(float(k), str(k)) for k in workers], log=True, limits=limits),
        y=y,
    )


def _steps(runs: Measurements) -> alt.LayerChart:
    """Return the seconds of a step by part, over the measured numbers of workers."""
    places = [float(index) for index, _ in enumerate(runs.runs)]
    parts = {
        "compute": [run.compute_s / run.steps for run in runs.runs],
        "communication": [run.communication_s / run.steps for run in runs.runs],
    }
    totals = [run.total_s / run.steps for run in runs.runs]
    parts["rest"] = [total - sum(seconds) for total, *seconds in zip(totals, *parts.values(), strict=True)]
    rows, _ = stacked(parts, places, width=BAR)
    above = [
        {"x": place, "y": total, "annotation": duration(total)}
        for place, total in zip(places, totals, strict=True)
    ]
    ticks = [(place, str(run.workers)) for place, run in zip(places, runs.runs, strict=True)]
    return marks.chart(
        "steps",
        "Where a step's time goes",
        [*marks.bars(rows), *marks.texts(above, beside=False)],
        looks={part: marks.tint(style) for style, part in enumerate(parts)},
        x=marks.axis("workers", ticks=ticks, limits=(-0.6, len(places) - 0.4)),
        y=marks.axis("time of a step / s", limits=(0, ROOM * max(totals))),
    )


def svg() -> str:
    """Return the charts side by side."""
    size: dict[str, Any] = {"width": WIDTH, "height": HEIGHT}
    parts = [
        alt.LayerChart(
            layer=drawn.layer,
            encoding=drawn.encoding,
            title=alt.TitleParams(drawn.title.text, anchor="middle"),
            **size,
        )
        for drawn in charts()
    ]
    whole = alt.hconcat(*parts, spacing=28).resolve_scale(**render.INDEPENDENT)
    whole = whole.configure(background="white", padding=10, **render.THEME)
    return vl_convert.vegalite_to_svg(whole.to_dict())


if __name__ == "__main__":
    PICTURE.write_text(svg() + "\n", "utf-8")

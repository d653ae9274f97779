"""Draws the picture of README.md, docs/images/workers.svg: `python tools/readme_picture.py`.

Marks are the runs of GNMT that MLBench published (mlbench/analysis/tables/mlbench-2021-runs.csv), on nodes
with one T4 each and at their price of that day; lines and bands are what `python -m mlbench.predict
published:gnmt` prints.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import altair as alt
import vl_convert

from mlbench.analysis.chart import Axis, Chart, Trace, time_axis
from mlbench.record import cost
from mlbench.record.format import duration, usd
from mlbench.report import render
from mlbench.wings.prediction import command, forecast, model, published_runs
from mlbench.wings.prediction.forecast import PredictedInterval
from mlbench.wings.prediction.model import Measurements

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "workers.svg"
TASK = "gnmt"
MOST_WORKERS = 32  # twice what was measured
WIDTH, HEIGHT = 236, 220  # pixels of the axes of each chart
ROOM = 1.06  # of an axis above what is drawn
EDGE = 1.15  # factor from the ends of an axis of workers to the least and the largest number
BAR = 0.7  # of the distance between two bars
BAND = 29  # a style that is drawn light blue, with a square in the legend


def charts() -> list[Chart]:
    """Return time and cost to the goal over workers with their 95 % bands, and the parts of a step."""
    runs = published_runs.measurements(TASK)
    fit = model.fit(runs)
    forecasts = forecast.forecast(fit, command.worker_counts(fit, runs, MOST_WORKERS))
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
        _curve("Time to BLEU 24", time_axis("time", hours, (0, hours)), counts, times, measured, duration),
        _curve("Cost of BLEU 24", Axis("cost / USD", limits=(0, dollars)), counts, costs, paid, usd),
        _steps(runs),
    ]


def _curve(
    title: str,
    y: Axis,
    workers: Sequence[int],
    predicted: Sequence[PredictedInterval],
    measured: dict[int, float],
    text: Callable[[float], str],
) -> Chart:
    values = [estimate.value for estimate in predicted]
    low, high = [estimate.low for estimate in predicted], [estimate.high for estimate in predicted]
    traces = [
        Trace("95 % interval", workers, values, "band", BAND, low=low, high=high),
        Trace("predicted", workers, values, small=True, texts=list(map(text, values))),
        Trace("measured", list(measured), list(measured.values()), "marks", 1),
    ]
    ticks = tuple((float(k), str(k)) for k in workers)
    x = Axis("workers", "log", ticks, (workers[0] / EDGE, workers[-1] * EDGE))
    return Chart.of(title, title, about="", x=x, y=y, traces=traces)


def _steps(runs: Measurements) -> Chart:
    """Return the seconds of a step by part, over the measured numbers of workers."""
    places = [float(index) for index, _ in enumerate(runs.runs)]
    parts = {
        "compute": [run.compute_s / run.steps for run in runs.runs],
        "communication": [run.communication_s / run.steps for run in runs.runs],
    }
    totals = [run.total_s / run.steps for run in runs.runs]
    parts["rest"] = [total - sum(seconds) for total, *seconds in zip(totals, *parts.values(), strict=True)]
    base = [0.0] * len(places)
    traces = []
    for style, (part, seconds) in enumerate(parts.items()):
        traces.append(Trace(part, places, seconds, "bars", style, base=base, width=BAR))
        base = [below + height for below, height in zip(base, seconds, strict=True)]
    traces.append(Trace("", places, totals, "labels", texts=[duration(total) for total in totals]))
    ticks = tuple((position, str(run.workers)) for position, run in zip(places, runs.runs, strict=True))
    x = Axis("workers", ticks=ticks, limits=(-0.6, len(places) - 0.4))
    y = Axis("time of a step / s", limits=(0, ROOM * max(totals)))
    return Chart.of("steps", "Where a step's time goes", about="", x=x, y=y, traces=traces)


def svg() -> str:
    """Return the charts side by side."""
    datasets: render.Datasets = {}
    drawn = charts()
    config = render.specification(drawn[0])["config"] | {"background": "white", "padding": 10}
    parts = [
        render.drawing(chart, datasets, bare=True).properties(title=chart.title, width=WIDTH, height=HEIGHT)
        for chart in drawn
    ]
    whole = alt.hconcat(*parts, spacing=28).resolve_scale(**render.INDEPENDENT)
    return vl_convert.vegalite_to_svg(whole.to_dict() | {"datasets": datasets, "config": config})


if __name__ == "__main__":
    PICTURE.write_text(svg() + "\n", "utf-8")

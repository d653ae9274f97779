"""Charts of a prediction: time over workers, and cost over time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlbench.analysis.points import MedianEstimate
from mlbench.plugins.prediction import sentences
from mlbench.plugins.prediction.forecast import Forecast, Offer, PredictedInterval
from mlbench.plugins.prediction.model import Measurements
from mlbench.record.format import duration

if TYPE_CHECKING:  # Altair is for the charts alone
    import altair as alt

    from mlbench.report.charts.frontier import FrontierPoint


def chart(
    forecasts: Sequence[Forecast], *, fitted: Measurements, held_out: Measurements, conditions: str = ""
) -> "alt.LayerChart":
    """Return a chart of predicted time over workers, with its band and, without `conditions`, the runs."""
    from mlbench.analysis import marks
    from mlbench.report.charts.frontier import TICKS_S

    predicted = [
        {"x": row.workers, "y": row.time_s.value, "low": row.time_s.low, "high": row.time_s.high}
        for row in forecasts
    ]
    band = [row | {"series": "95 % of further runs"} for row in predicted if row["low"]]
    line = [_mark("predicted", row.workers, row.time_s.value) for row in forecasts]
    fitted_runs, other_runs = (
        [] if conditions else [_mark(series, run.workers, run.total_s) for run in several.runs if run.reached]
        for several, series in ((fitted, "measured"), (held_out, "measured, not fitted"))
    )
    rows = [*band, *line, *fitted_runs, *other_runs]
    drawn = [y for row in rows for y in (row["y"], row.get("low"), row.get("high")) if y]
    ticks = [y for y in TICKS_S if min(drawn) / 10 < y < max(drawn) * 10]
    limits = min([*drawn, *ticks]), max([*drawn, *ticks])
    about = f"{fitted.title}, fitted at {sentences.listed(fitted.counts)} workers"
    return marks.chart(
        "prediction",
        f"Predicted time to accuracy of {fitted.task}",
        [
            *marks.band(band),
            *marks.line(line, small=True),
            *marks.points(fitted_runs),
            *marks.points(other_runs),
        ],
        looks={
            "95 % of further runs": marks.look(5),
            "predicted": marks.look(0),
            "measured": marks.look(1),
            "measured, not fitted": marks.look(1, hollow=True),
        },
        x=marks.axis(
            "workers", ticks=[(float(row.workers), f"{row.workers:,}") for row in forecasts], log=True
        ),
        y=marks.axis("time to accuracy", ticks=[(y, duration(y)) for y in ticks], log=True, limits=limits),
        about=f"{about}; predicted for {conditions}" if conditions else about,
    )


def points(offers: Sequence[Offer]) -> "list[FrontierPoint]":
    """Return the points of the offers, in their order, for a chart of cost over time."""
    from mlbench.report.charts.frontier import FrontierPoint

    return [
        FrontierPoint(offer.hardware, row.workers, _estimate(row.time_s), _estimate(row.cost_usd))
        for offer in offers
        if (row := offer.forecast).cost_usd
    ]


def _estimate(interval: PredictedInterval) -> MedianEstimate:
    return MedianEstimate(interval.value, interval.low, interval.high, n=0)


def _mark(series: str, workers: int, seconds: float) -> dict[str, Any]:
    return {"series": series, "x": workers, "y": seconds, "text": f"{workers:,} workers: {duration(seconds)}"}

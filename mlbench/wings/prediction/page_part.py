"""Cost against time over all hardware, as predicted, for the report of a study and for a site's page."""

from collections.abc import Sequence
from datetime import date

from mlbench.analysis.points import MedianEstimate
from mlbench.config.errors import UserError
from mlbench.record.record import Record
from mlbench.report import tables
from mlbench.report.charts import frontier
from mlbench.report.page import PagePart
from mlbench.wings.prediction import command, forecast, model
from mlbench.wings.prediction.forecast import FURTHEST, PredictedInterval, Target
from mlbench.wings.prediction.model import Measurements

TITLE = "Predicted cost over time to accuracy"
HEADINGS = ["hardware", "workers", "cost", "time to accuracy", "price of"]


def part(records: Sequence[Record], *, title: str) -> PagePart | None:
    """Return the prediction from the runs of one experiment; None where they do not allow one."""
    try:
        return _part(model.from_records(records, title=title), title)
    except UserError:
        return None  # `predict` says why


def published() -> list[PagePart]:
    """Return the predictions from the runs that MLBench published in 2021."""
    several = [command.published_runs(task) for task in command.PUBLISHED_TASKS]
    titles = [f"{measurements.task}, from {measurements.title}" for measurements in several]
    return list(filter(None, map(_part, several, titles)))


def _part(measured: Measurements, title: str) -> PagePart | None:
    fit = model.fit(model.check(measured))
    counts = command.worker_counts(fit, measured, FURTHEST * measured.counts[-1])
    candidates, refused = forecast.frontier(fit, counts, Target(), date.today())
    offers = {
        id(candidate): frontier.FrontierPoint(
            candidate.hardware,
            candidate.forecast.workers,
            _estimate(candidate.forecast.time_s),
            _estimate(candidate.forecast.cost_usd),
        )
        for candidate in candidates
    }
    if not offers:
        return None
    rows = []
    for candidate in sorted(candidates, key=lambda candidate: offers[id(candidate)].usd.value):
        offer = offers[id(candidate)]
        cells = [tables.TableCell(candidate.hardware), tables.TableCell(str(offer.workers), number=True)]
        cells += [
            tables.cell(offer.usd, "USD"),
            tables.cell(offer.time, "s"),
            tables.TableCell(candidate.price_date),
        ]
        rows.append(tables.Row(cells, apart=candidate.dominated))
    counted = ", ".join(map(str, measured.counts))
    about = f"predicted from runs at {counted} workers; bars are 95 % intervals"
    chart = frontier.frontier(
        list(offers.values()), title="Predicted cost over time to accuracy", about=about
    )
    answers = forecast.pick(candidates, deadline=None, budget=None)
    notes = [f"Not shown: {', '.join(name for name in refused if refused[name] == why)}: {why}."
             for why in dict.fromkeys(refused.values())]  # fmt: skip
    table = tables.Table(HEADINGS, rows)
    answer = " ".join(answer.sentence for answer in answers)
    return PagePart(f"Other hardware: {title}", measured.task, table, chart, answer, notes)


def _estimate(interval: PredictedInterval | None) -> MedianEstimate:
    assert interval is not None
    return MedianEstimate(interval.value, interval.low, interval.high, n=0)

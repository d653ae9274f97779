"""Show predicted cost against time over all hardware, for the report of a study and a site's page."""

from collections.abc import Sequence
from datetime import date

from mlbench.config.errors import UserError
from mlbench.plugins.prediction import charts, forecast, model, published_runs, sentences, source
from mlbench.plugins.prediction.forecast import FURTHEST
from mlbench.plugins.prediction.model import AS_MEASURED, Measurements
from mlbench.record.record import Record
from mlbench.report import tables
from mlbench.report.charts import frontier
from mlbench.report.page import PagePart

HEADINGS = ["hardware", "workers", "cost", "time to accuracy", "price of"]


def part(records: Sequence[Record], *, title: str) -> PagePart | None:
    """Return the prediction from the runs of one experiment, or None if they do not allow one."""
    try:
        return _part(model.from_records(records, title=title), title, date.today())
    except UserError:
        return None  # `predict` prints the reason


def published(today: date) -> list[PagePart]:
    """Return the predictions from MLBench's published runs of 2021, at prices current on that day."""
    several = map(published_runs.measurements, published_runs.TASKS)
    parts = (_part(some, f"{some.task}, from {some.title}", today) for some in several)
    return list(filter(None, parts))


def _part(measured: Measurements, title: str, today: date) -> PagePart | None:
    fit = model.fit(model.check(measured))
    counts = source.worker_counts(fit, measured, FURTHEST * measured.counts[-1])
    offers, refused = forecast.frontier(fit, counts, AS_MEASURED, today)
    if not offers:
        return None
    points = charts.points(offers)
    rows = [
        tables.Row(
            [
                tables.TableCell(point.machine),
                tables.TableCell(str(point.workers), number=True),
                tables.cell(point.usd, "USD"),
                tables.cell(point.time, "s"),
                tables.TableCell(offer.price_date),
            ],
            apart=offer.dominated,
        )
        for offer, point in sorted(zip(offers, points, strict=True), key=lambda pair: pair[1].usd.value)
    ]
    counted = ", ".join(map(str, measured.counts))
    about = f"predicted from runs at {counted} workers, bars are 95 % intervals"
    chart = frontier.frontier(points, title="Predicted cost over time to accuracy", about=about)
    answer = " ".join(answer.sentence for answer in forecast.pick(offers, deadline=None, budget=None))
    notes = sentences.refusals(refused)
    return PagePart(
        f"Other hardware: {title}", measured.task, tables.Table(HEADINGS, rows), chart, answer, notes
    )

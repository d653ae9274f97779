"""Cost against time over all hardware, as predicted, for the report of a study and for a site's page."""

from collections.abc import Sequence
from datetime import date

from mlbench.analysis.points import Estimate
from mlbench.config.errors import UserError
from mlbench.record.record import Record
from mlbench.report import tables
from mlbench.report.charts import frontier
from mlbench.report.page import Part
from mlbench.wings.prediction import command, forecast, model
from mlbench.wings.prediction.forecast import FURTHEST, Interval, Target
from mlbench.wings.prediction.model import Measurements

TITLE = "Predicted cost over time to accuracy"
HEADINGS = ["hardware", "workers", "cost", "time to accuracy", "price of"]


def part(records: Sequence[Record], *, title: str) -> Part | None:
    """Return the prediction from the runs of one experiment; None where they do not allow one."""
    try:
        return _part(model.from_records(records, title=title), title)
    except UserError:
        return None  # `predict` says why


def published() -> list[Part]:
    """Return the predictions from the runs that MLBench published in 2021."""
    several = [command.published_runs(task) for task in command.PUBLISHED_TASKS]
    return list(filter(None, (_part(one, f"{one.task}, from {one.title}") for one in several)))


def _part(measured: Measurements, title: str) -> Part | None:
    fit = model.fit(model.check(measured))
    counts = command.worker_counts(fit, measured, FURTHEST * measured.counts[-1])
    found, refused = forecast.frontier(fit, counts, Target(), date.today())
    offers = {
        id(one): frontier.Offer(one.hardware, one.forecast.workers, _estimate(one.forecast.time_s),
                                _estimate(one.forecast.cost_usd))
        for one in found
    }  # fmt: skip
    if not offers:
        return None
    rows = []
    for one in sorted(found, key=lambda one: offers[id(one)].usd.value):
        offer = offers[id(one)]
        cells = [tables.Cell(one.hardware), tables.Cell(str(offer.workers), number=True)]
        cells += [tables.cell(offer.usd, "USD"), tables.cell(offer.time, "s"), tables.Cell(one.price_date)]
        rows.append(tables.Row(cells, apart=one.dominated))
    counted = ", ".join(map(str, measured.counts))
    about = f"predicted from runs at {counted} workers; bars are 95 % intervals"
    chart = frontier.frontier(
        list(offers.values()), title="Predicted cost over time to accuracy", about=about
    )
    answers = forecast.pick(found, deadline=None, budget=None)
    notes = [f"Not shown: {', '.join(name for name in refused if refused[name] == why)}: {why}."
             for why in dict.fromkeys(refused.values())]  # fmt: skip
    table = tables.Table(HEADINGS, rows)
    answer = " ".join(one.sentence for one in answers)
    return Part(f"Other hardware: {title}", measured.task, table, chart, answer, notes)


def _estimate(one: Interval | None) -> Estimate:
    assert one is not None
    return Estimate(one.value, one.low, one.high, n=0)

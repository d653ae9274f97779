"""One self-contained page: question, answer, figures, tables, provenance; it asks nothing of any network."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlbench.analysis.chart import Chart
from mlbench.config import plugins
from mlbench.record.record import Record
from mlbench.report import render, tables
from mlbench.report.charts import charts
from mlbench.report.grouping import Group, disturbances, groups, waiting
from mlbench.report.provenance_section import facts, provenance
from mlbench.report.summary import HEADLINE, answer, headline
from mlbench.tasks import rcp, registry

MOST_NAMED = 12  # marks of a picture that its alternative text names
READING = (
    "A value is the median of a point's runs; below it stands its bootstrap 95 % interval.",
    "The olympic mean leaves out the best and the worst run (MLPerf); it needs three runs.",
    "Every seed counts once. A run that missed its goal, diverged or failed counts as infinite time; a seed "
    "of which one attempt failed counts as failed. Interrupted attempts are listed and do not count.",
    "Time to accuracy is wall clock from the first access to training data to the end of the validation that "
    "met the goal; in every run it is epochs times seconds per epoch, validations inside.",
    "Speed-up is the time of one worker over that of k, of the same experiment in all else. Compute only "
    "counts forward, loss, backward and optimizer.",
    "Exposed communication is what nothing hides; overlapped communication runs beside the backward pass. "
    "Both are shares of the time in batches.",
    "The price index is price increase over performance increase, k / S^2 at one price per node: below 1 the "
    "workers earn their price. It is of the time to accuracy, without start-up.",
    "Runs whose workers shared CPUs, or whose node is not the hardware stated, are excluded from speed-ups.",
)


@dataclass(frozen=True)
class StudyText:
    """A study in words.

    - commands: command lines that make it again, in their order.
    - planned: all runs that were asked for, so that those without a result are told.
    - lost: a sentence for each attempt that has no record.
    - facts: what stands below the title before what the runs say.
    """

    title: str
    question: str
    commands: tuple[str, ...]
    planned: tuple[tables.Planned, ...] = ()
    lost: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    id: str  # "" where no script draws it
    chart: Chart
    specification: dict[str, Any]  # of Vega-Lite
    svg: str  # as base64

    @property
    def alternative(self) -> str:
        """What the picture shows, for those who do not see it."""
        texts = [text for trace in self.chart.traces if trace.label for text in trace.texts]
        more = f"; and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
        return f"{self.chart.title}. {'; '.join(texts[:MOST_NAMED])}{more}"


@dataclass(frozen=True)
class PagePart:
    """A part of a page: the chart first, then the sentence, then the table."""

    title: str
    task: str
    table: tables.Table
    chart: Chart | None = None
    answer: str = ""
    notes: Sequence[str] = ()

    @property
    def figure(self) -> Figure | None:
        return picture(self.chart) if self.chart and not self.chart.empty else None


def page(
    records: Sequence[Record],
    *,
    study: StudyText,
    references: Sequence[Any] = (),
    grouped: Sequence[Group] | None = None,
    parts: Sequence[PagePart] = (),
) -> str:
    """Return the page as HTML; nothing in it is fetched from elsewhere, and every text is escaped.

    - references: published results (analysis.published.PublishedNumber) beside ours.
    - parts: what stands below the tasks.
    """
    grouped = groups(records) if grouped is None else grouped
    sections = [_section(group, index, grouped, references) for index, group in enumerate(grouped)]
    points = [point for group in grouped for point in group.points]
    disturbed = {run: why for point in points for run, why in point.disturbed.items()}
    drawn = {figure.id: figure.specification for section in sections for figure in section["figures"]}
    return rendered(
        "page.html",
        study=study,
        commands=study.commands or list(dict.fromkeys(record.command for record in records)),
        facts=[*study.facts, *facts(records)],
        sections=sections,
        headings=HEADLINE,
        parts=parts,
        filters=filters(records),
        missing=tables.missing(records, study.planned),
        runs=tables.runs(records, disturbed),
        provenance=provenance(records),
        reading=READING,
        drawn=drawn,
        library=_library() if drawn else "",
    )


def predicted(grouped: Sequence[Group]) -> list[PagePart]:
    """Return what is predicted for all hardware from each curve that has a price; it takes seconds each."""
    return [
        part
        for module in plugins.forecasts()
        for group in grouped
        for curve in group.own
        if not curve.published and any(point.usd for point in curve.points)
        if (part := module.part([run for point in curve.points for run in point.records],
                                title=f"{curve.prefix}{group.title}"))
    ]  # fmt: skip


def filters(records: Sequence[Record]) -> dict[str, list[str]]:
    """Return by what a reader may filter: names and values in their order; one value is no choice."""
    values = {
        "task": sorted({record.experiment.task.name for record in records}),
        "workers": [str(count) for count in sorted({record.workers for record in records})],
        "hardware": sorted({record.experiment.hardware.name for record in records}),
    }
    return {name: some for name, some in values.items() if len(some) > 1}


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    return vl_convert.javascript_bundle(None).replace("</script", "<\\/script")  # pyright: ignore[reportArgumentType]


def rendered(template: str, **values: Any) -> str:
    """Return a page as HTML, from a template beside this module; every text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("mlbench.report", "")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, loader=loader)
    environment.filters["joined"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template(template).render(**values)


def _section(
    group: Group, index: int, all_groups: Sequence[Group], references: Sequence[Any]
) -> dict[str, Any]:
    """Return what the template shows of a group."""
    beside, unshown = tables.references(
        [reference for reference in references if reference.task == group.task]
    )
    first = next((other for other in all_groups if other.task == group.task and not other.other_data), None)
    notes = {f"Note: {speedup.note}." for curve in group.curves for speedup in curve.speedups if speedup.note}
    notes |= {f"Implausible: {warning}." for point in group.points if (warning := rcp.warning(point.records))}
    drawn = charts(group)
    own = registry.report(group.task)  # a task that draws its own table needs none of the others
    empty = [f"{chart.title}: {' '.join(chart.notes)}" for chart in drawn if chart.empty and not own]
    return dict(
        id=f"group-{index}",
        title=group.title,
        task=group.task,
        headline=headline(group),
        answer=answer(group),
        figures=[picture(chart, f"figure-{index}-{chart.name}") for chart in drawn if not chart.empty],
        table=tables.points(group),
        notes=[*empty, *sorted(notes), *disturbances(group), *waiting(group)],
        references=beside if group is first else [],
        unshown=unshown,
    )


def picture(chart: Chart, name: str = "") -> Figure:
    """Return the picture of a chart; one with a name is drawn by scripts, too."""
    specification = render.specification(chart)
    return Figure(name, chart, specification, base64.b64encode(render.svg(specification).encode()).decode())

"""Write one self-contained page with question, answer, figures, tables, provenance. It loads nothing."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt

from mlbench.config import plugins
from mlbench.record.record import Record
from mlbench.report import render, tables
from mlbench.report.answers import HEADLINE, answer, headline
from mlbench.report.charts import charts
from mlbench.report.grouping import Group, disturbances, groups, waiting
from mlbench.report.provenance_section import facts, provenance
from mlbench.tasks import rcp, registry

READING = (
    "A value is the median of a point's runs, with its bootstrap 95 % interval below.",
    "The olympic mean leaves out the best and the worst run (MLPerf). It needs three runs.",
    "Every seed counts once. A run that missed its goal, diverged or failed counts as infinite time. A seed "
    "with a failed attempt counts as failed. Interrupted attempts are listed and do not count.",
    "Time to accuracy is wall clock from the first access to training data to the end of the validation that "
    "met the goal. In every run it is epochs times seconds per epoch, validations inside.",
    "Speed-up is the time of one worker over that of k, of the otherwise identical experiment. Compute only "
    "counts forward, loss, backward and optimizer.",
    "Exposed communication is not hidden by computing. Overlapped communication runs during the "
    "backward pass. "
    "Both are shares of the time in batches.",
    "The price index is price increase over performance increase, k / S^2 at one price per node: below 1 the "
    "workers earn their price. It is of the time to accuracy, without start-up.",
    "Runs whose workers shared CPUs, or whose node is not the hardware stated, are excluded from speed-ups.",
)


@dataclass(frozen=True)
class StudyText:
    """A study in words.

    - commands: command lines that make it again, in order.
    - planned: all planned runs, so that those without a result are listed.
    - lost: a sentence for each attempt that has no record.
    - facts: lines below the title, before the results.
    """

    title: str
    question: str
    commands: tuple[str, ...]
    planned: tuple[tables.Planned, ...] = ()
    lost: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    id: str  # "" if no script draws it
    chart: alt.LayerChart
    specification: dict[str, Any]  # of Vega-Lite
    svg: str  # as base64


@dataclass(frozen=True)
class PagePart:
    """A part of a page: the charts first, then the sentence, then the table. `about` is below the title."""

    title: str
    task: str
    table: tables.Table
    chart: alt.LayerChart | None = None
    answer: str = ""
    notes: Sequence[str] = ()
    cost_chart: alt.LayerChart | None = None
    about: str = ""

    @property
    def figures(self) -> list[Figure]:
        return [picture(chart) for chart in (self.chart, self.cost_chart) if chart and chart.layer]


def page(
    records: Sequence[Record],
    *,
    study: StudyText,
    references: Sequence[Any] = (),
    grouped: Sequence[Group] | None = None,
    parts: Sequence[PagePart] = (),
) -> str:
    """Return the page as HTML. Nothing in it is fetched from elsewhere, and every text is escaped.

    - references: published results (analysis.published.PublishedNumber) for comparison.
    - parts: what follows the tasks.
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
    """Return the predictions for all hardware from each curve with a price. Each takes seconds."""
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
    """Return the names and values by which a reader may filter, in order. One value is no choice."""
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
    """Return a page as HTML, from a template next to this module. Every text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("mlbench.report", "")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, loader=loader)
    environment.filters["joined"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template(template).render(**values)


def _section(
    group: Group, index: int, all_groups: Sequence[Group], references: Sequence[Any]
) -> dict[str, Any]:
    """Return the values that the template shows of a group."""
    beside, unshown = tables.references(
        [reference for reference in references if reference.task == group.task]
    )
    first = next((other for other in all_groups if other.task == group.task and not other.other_data), None)
    notes = {f"Note: {speedup.note}." for curve in group.curves for speedup in curve.speedups if speedup.note}
    notes |= {f"Implausible: {warning}." for point in group.points if (warning := rcp.warning(point.records))}
    drawn = charts(group)
    own = registry.report(group.task)  # a task with a chart of its table needs none of the others
    empty = [
        f"{chart.title.text}: {' '.join(chart.usermeta['notes'])}"
        for chart in drawn
        if not (chart.layer or own)
    ]
    return dict(
        id=f"group-{index}",
        title=group.title,
        task=group.task,
        headline=headline(group),
        answer=answer(group),
        figures=[picture(chart, f"figure-{index}-{chart.name}") for chart in drawn if chart.layer],
        table=tables.points(group),
        notes=[*empty, *sorted(notes), *disturbances(group), *waiting(group)],
        references=beside if group is first else [],
        unshown=unshown,
    )


def picture(chart: alt.LayerChart, name: str = "") -> Figure:
    """Return the picture of a chart. One with a name is drawn by scripts, too."""
    specification = render.specification(chart)
    return Figure(name, chart, specification, base64.b64encode(render.svg(specification).encode()).decode())

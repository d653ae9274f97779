"""One self-contained page: question, answer, figures, tables, provenance; it asks nothing of any network."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from mlbench.analysis.chart import Chart
from mlbench.config import plugins
from mlbench.record.record import Record
from mlbench.report import render, tables
from mlbench.report.charts import charts
from mlbench.report.grouping import Group, disturbances, groups, waiting
from mlbench.report.page_input import StudyText
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
class Figure:
    id: str
    chart: Chart
    specification: dict[str, Any]  # of Vega-Lite; empty on a page without scripts that draw
    svg: str  # as base64

    @property
    def alternative(self) -> str:
        """What the picture shows, for those who do not see it."""
        texts = [text for trace in self.chart.traces if trace.label for text in trace.texts]
        more = f"; and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
        return f"{self.chart.title}. {'; '.join(texts[:MOST_NAMED])}{more}"


@dataclass(frozen=True)
class Part:
    """A part of a page: the chart first, then the sentence, then the table."""

    title: str
    task: str
    table: tables.Table
    chart: Chart | None = None
    answer: str = ""
    notes: Sequence[str] = ()

    @property
    def figure(self) -> Figure | None:
        return still(self.chart) if self.chart and not self.chart.empty else None


@dataclass(frozen=True)
class _Section:
    id: str
    title: str
    task: str
    headline: list[str]
    answer: list[str]
    figures: list[Figure]
    table: tables.Table
    notes: list[str]
    references: list[tables.Published]
    unshown: int


def page(
    records: Sequence[Record],
    *,
    study: StudyText,
    references: Sequence[Any],
    grouped: Sequence[Group] | None = None,
    parts: Sequence[Part] = (),
) -> str:
    """Return the page as HTML; nothing in it is fetched from elsewhere, and every text is escaped.

    parts: what stands below the tasks.
    """
    grouped = groups(records) if grouped is None else grouped
    sections = [_section(group, place, grouped, references) for place, group in enumerate(grouped)]
    points = [point for group in grouped for point in group.points]
    disturbed = {run: why for point in points for run, why in point.disturbed.items()}
    figures = [one for section in sections for one in section.figures]
    drawn = {one.id: one.specification for one in figures}
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
        figures_json=_inside_script(drawn),
        library=_library() if drawn else "",
    )


def predicted(grouped: Sequence[Group]) -> list[Part]:
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
        "task": sorted({one.experiment.task.name for one in records}),
        "workers": [str(count) for count in sorted({one.workers for one in records})],
        "hardware": sorted({one.experiment.hardware.name for one in records}),
    }
    return {name: some for name, some in values.items() if len(some) > 1}


def published(names: set[str]) -> list[Any]:
    """Return the published results of these tasks."""
    from mlbench.analysis import published as reference

    return [one for name in sorted(names) for one in reference.load(task=name)]


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    import vl_convert

    return vl_convert.javascript_bundle(None).replace("</script", "<\\/script")  # pyright: ignore[reportArgumentType]


def rendered(template: str, **values: Any) -> str:
    """Return a page as HTML, from a template beside this module; every text is escaped."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, loader=FunctionLoader(_packaged)
    )
    environment.filters["joined"] = lambda text: text.replace(" %", "\N{NO-BREAK SPACE}%")
    style, script = _packaged("page.css"), _packaged("page.js")
    return environment.get_template(template).render(style=style, script=script, **values)


def _packaged(name: str) -> str:
    return files("mlbench.report").joinpath(name).read_text(encoding="utf-8")


def _section(group: Group, place: int, all_groups: Sequence[Group], references: Sequence[Any]) -> _Section:
    beside, unshown = tables.references([one for one in references if one.task == group.task])
    first = next((one for one in all_groups if one.task == group.task and not one.other_data), None)
    notes = {f"Note: {one.note}." for curve in group.curves for one in curve.speedups if one.note}
    points = [one.point for curve in group.curves for one in curve.speedups]
    notes |= {f"Implausible: {warning}." for point in points if (warning := rcp.warning(point.records))}
    drawn = charts(group)
    own = registry.report(group.task)  # a task that draws its own table needs none of the others
    empty = [f"{one.title}: {' '.join(one.notes)}" for one in drawn if one.empty and not own]
    return _Section(
        id=f"group-{place}",
        title=group.title,
        task=group.task,
        headline=headline(group),
        answer=answer(group),
        figures=[_live(f"figure-{place}-{one.name}", one) for one in drawn if not one.empty],
        table=tables.points(group),
        notes=[*empty, *sorted(notes), *disturbances(group), *waiting(group)],
        references=beside if group is first else [],
        unshown=unshown,
    )


def _live(name: str, chart: Chart) -> Figure:
    """Return a figure that scripts draw, with its still picture; the page has its title and notes already."""
    specification = render.specification(chart)
    return Figure(name, chart, specification, _svg(specification))


def still(chart: Chart) -> Figure:
    """Return the picture of a chart."""
    return Figure("", chart, {}, _svg(render.specification(chart)))


def _svg(specification: dict[str, Any]) -> str:
    return base64.b64encode(render.svg(specification).encode()).decode()


def _inside_script(value: Any) -> str:
    """Return JSON that no HTML parser takes for the end of its script element or for a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

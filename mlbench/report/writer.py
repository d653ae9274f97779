"""Write a study's report: figures, tables and one self-contained page. `aggregates` has the numbers."""

from collections.abc import Sequence
from pathlib import Path

import altair as alt

from mlbench.analysis import marks, published
from mlbench.record.record import Record
from mlbench.report import aggregates, page, render
from mlbench.report.charts import NAMES, charts
from mlbench.report.grouping import Group, groups
from mlbench.report.page import StudyText
from mlbench.report.tables import Planned

__all__ = ["FILES", "Planned", "StudyText", "draw", "groups", "write"]

FILES = (*(f"{name}.png" for name in NAMES), "summary.parquet", "summary.csv", "report.html")


def write(
    records: Sequence[Record], folder: Path, *, study: StudyText, grouped: Sequence[Group] | None = None
) -> list[Path]:
    """Write FILES into the folder, which is created, and return their paths.

    `grouped`: `grouping.groups(records)` if the caller has them, as their bootstraps take seconds.

    A study of both scales has the charts of its second one in separate files, e.g. speedup-mini.png, because
    mini and official never share one picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    grouped = groups(records) if grouped is None else grouped
    paths = draw(grouped, folder)
    aggregates.save(aggregates.rows(grouped), folder)
    tasks = sorted({group.task for group in grouped})
    references = [result for task in tasks for result in published.load(task=task)]
    parts = page.predicted(grouped)
    text = page.page(records, study=study, references=references, grouped=grouped, parts=parts)
    (folder / "report.html").write_text(text, encoding="utf-8")
    return [*paths, *(folder / name for name in FILES if not name.endswith(".png"))]


def draw(grouped: Sequence[Group], folder: Path, names: Sequence[str] = NAMES) -> list[Path]:
    """Write charts as PNG into the folder, those of all tasks of one scale in one file. Return the paths.

    A task that measures a table adds its charts, e.g. all_reduce_time.png.
    """
    scales: dict[str, list[Group]] = {}
    for group in sorted(grouped, key=lambda group: group.scale != "official"):
        scales.setdefault(group.scale, []).append(group)
    paths = []
    for index, (scale, some) in enumerate(scales.items() or [("", [])]):
        drawn: dict[str, list[alt.LayerChart]] = {name: [] for name in names}
        for group in some:
            for chart in charts(group):
                if chart.name in names or chart.name not in NAMES:
                    drawn.setdefault(chart.name, []).append(chart)
        for name, pictures in drawn.items():
            path = folder / (f"{name}-{scale}.png" if index else f"{name}.png")
            render.save(pictures or [_nothing(name)], path)
            paths.append(path)
    return paths


def _nothing(name: str) -> alt.LayerChart:
    """Return a picture with the text that no run was measured."""
    notes = ["No run of this study has a record."]
    return marks.chart(
        name, name.replace("_", " "), [], looks={}, x=marks.axis(""), y=marks.axis(""), notes=notes
    )

"""The report of a study: figures, tables and one self-contained page; `aggregates` has the numbers alone."""

from collections.abc import Sequence
from pathlib import Path

from mlbench.analysis import published
from mlbench.analysis.chart import Axis, Chart
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
    """Write FILES into the folder, which is made; return their paths.

    `grouped`: `grouping.groups(records)` where the caller has them; their bootstraps take seconds.

    A study of both scales has the charts of its second one in files of their own, e.g. speedup-mini.png:
    mini and official never stand in one picture.
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
    """Write charts as PNG into the folder, those of all tasks of one scale in one file; return the paths.

    A task that measures a table adds its own, e.g. all_reduce_time.png.
    """
    scales: dict[str, list[Group]] = {}
    for group in sorted(grouped, key=lambda group: group.scale != "official"):
        scales.setdefault(group.scale, []).append(group)
    paths = []
    for index, (scale, some) in enumerate(scales.items() or [("", [])]):
        drawn: dict[str, list[Chart]] = {name: [] for name in names}
        for group in some:
            for chart in charts(group):
                if chart.name in names or chart.name not in NAMES:
                    drawn.setdefault(chart.name, []).append(chart)
        for name, pictures in drawn.items():
            path = folder / (f"{name}-{scale}.png" if index else f"{name}.png")
            render.save(pictures or [_nothing(name)], path)
            paths.append(path)
    return paths


def _nothing(name: str) -> Chart:
    """Return a picture that says that no run was measured."""
    notes = ["No run of this study has a record."]
    return Chart.of(name, name.replace("_", " "), x=Axis(""), y=Axis(""), traces=[], notes=notes)

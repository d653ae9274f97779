"""A static site over several studies: one leaderboard and one page a study, to host anywhere."""

import re
from collections.abc import Sequence
from pathlib import Path

from mlbench.analysis.points import Point
from mlbench.record.official import IMPORTED
from mlbench.record.record import Record
from mlbench.report import page
from mlbench.report.grouping import Group, groups
from mlbench.report.page_input import StudyText
from mlbench.report.tables import Cell, Row, Table, cell

SINGLE = "single runs"
HEADINGS = [
    "point",
    "hardware",
    "time to accuracy",
    "samples / s",
    "cost",
    "runs",
    "claims eligible",
    "study",
]


def write(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write index.html and a page a study into the folder; return their paths, the index first."""
    studies: dict[str, list[Record]] = {}
    for one in records:
        studies.setdefault(one.experiment.study or SINGLE, []).append(one)
    names = _file_names(studies)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "index.html"]
    for name, some in sorted(studies.items()):
        question = "What do these runs show?" if name == SINGLE else ""
        text = page.page(some, study=StudyText(name, question, ()), references=[])
        written.append(folder / names[name])
        written[-1].write_text(text, encoding="utf-8")
    index = page.rendered(
        "site.html",
        sections=[(one.title, one.task, _table(one)) for one in groups(records)],
        studies=[(name, names[name], len(some), _span(some)) for name, some in sorted(studies.items())],
        filters=page.filters(records),
    )
    written[0].write_text(index, encoding="utf-8")
    return written


def _table(group: Group) -> Table:
    """Return the points of a task, fastest first; points that may not be compared come last, apart."""
    pairs = [(curve.label, point) for curve in group.curves for point in curve.points]
    pairs.sort(key=lambda pair: (pair[1].exclusion_reason is not None, pair[1].median_s))
    return Table(HEADINGS, [_row(label, point) for label, point in pairs])


def _row(label: str, point: Point) -> Row:
    eligible = sum(set(one.official_reasons) <= {IMPORTED} for one in point.records)
    studies = sorted({one.experiment.study or SINGLE for one in point.records})
    cells = [
        Cell(f"{point.workers} x {point.backend}, {point.sync}", label),
        Cell(point.hardware),
        cell(point.time_to_accuracy, "s"),
        cell(point.samples_per_s, ""),
        cell(point.usd, "USD"),
        Cell(f"{point.reached} of {point.n}", number=True),
        Cell(f"{eligible} of {point.n}", number=True),
        Cell(", ".join(studies)),
    ]
    filters = {"task": point.task, "workers": str(point.workers), "hardware": point.hardware}
    return Row(cells, point.exclusion_reason is not None, filters)


def _span(records: Sequence[Record]) -> str:
    """Return the days on which the runs began."""
    days = sorted({one.started_at[:10] for one in records})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def _file_names(studies: dict[str, list[Record]]) -> dict[str, str]:
    """Return a file name a study, of letters that every server takes; equal ones get a number."""
    names: dict[str, str] = {}
    for name in sorted(studies):
        stem = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip(".-") or "study"
        taken = {other.lower() for other in names.values()} | {"index.html"}
        endings = ("", *(f"-{number}" for number in range(2, len(studies) + 3)))
        ending = next(end for end in endings if f"{stem}{end}.html".lower() not in taken)
        names[name] = f"{stem}{ending}.html"
    return names

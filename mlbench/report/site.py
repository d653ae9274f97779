"""A static site of results, to host anywhere: leaderboards with tiers, a page a submission and a study.

Pages have permanent names: ENTITY-DATE-HARDWARE.html of a submission, the name of a study, hardware.html
(cost over time) and published.html (what others published, which mlbench did not measure).
"""

import math
import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from mlbench.analysis import published
from mlbench.analysis.chart import Chart, Trace, drawable, ends, side_by_side, time_axis, worker_axis
from mlbench.analysis.points import Point
from mlbench.config import plugins
from mlbench.record.format import counted, usd
from mlbench.record.official import IMPORTED
from mlbench.record.record import Record
from mlbench.report import leaderboard, page, publication, tables
from mlbench.report.charts import frontier
from mlbench.report.grouping import Group, groups
from mlbench.report.leaderboard import Entry
from mlbench.report.page import Part
from mlbench.report.page_input import StudyText
from mlbench.report.tables import Cell, Row, Table, cell
from mlbench.tracking.submission import Checked

SINGLE = "single runs"
LOOSE = Checked("", "", None, (), (), ("handed in without submission.yaml",), {})  # runs of no submission
PAGES = [
    ("Leaderboard", "index.html"), ("Hardware", "hardware.html"), ("Published by others", "published.html"),
]  # fmt: skip
OTHERS = "Tier: published, and not measured by mlbench."
OWN = {"index.html", "hardware.html", "published.html"}
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
RANKED = ["rank", "entity", "workers", "hardware", "time to accuracy", "cost", "goal reached", "tier"]


def write(
    records: Sequence[Record], folder: Path, *, submissions: Sequence[Checked] = (), predict: bool = False
) -> list[Path]:
    """Write the site into the folder; return its paths, index.html first.

    - records: they belong to no submission, are shown by study, and no rank is theirs.
    - predict: whether the page of hardware also has what is predicted from all of them, and from the runs
      that MLBench published; a fit and its intervals take some 10 s of a CPU (2026-11-25).
    """
    studies: dict[str, list[Record]] = {}
    for one in records:
        studies.setdefault(one.experiment.study or SINGLE, []).append(one)
    names = _file_names(studies, {_page(one).lower() for one in submissions} | OWN)
    folder.mkdir(parents=True, exist_ok=True)
    texts: dict[str, str] = {}
    for name, some in sorted(studies.items()):
        question = "What do these runs show?" if name == SINGLE else ""
        texts[names[name]] = page.page(some, study=StudyText(name, question, ()), references=[])
    entries = leaderboard.entries(submissions)
    for one in submissions:
        texts[_page(one)] = page.page(list(one.records), study=_about(one, entries), references=[])
    runs = [(one, run) for one in submissions for run in one.records]
    every = [*records, *(run for _, run in runs)]
    why = [f"Tier: {leaderboard.SELF}: {LOOSE.incomplete[0]}."]
    loose = [Part(one.title, one.task, _table(one), notes=why) for one in groups(records)]
    texts["index.html"] = _rendered(
        "Results",
        "Time to accuracy of every point, fastest first, with 95 % intervals.",
        [*(_ranked(some) for some in _by_section(entries)), *loose],
        caption="medians of the runs; points in italics may not be compared",
        tiers=leaderboard.TIERS if entries else {},
        studies=[(name, names[name], len(some), _span(some)) for name, some in sorted(studies.items())],
        filters=page.filters(every),
    )
    texts["hardware.html"] = _rendered(
        "Hardware",
        "What the goal costs, over its time: nothing is both cheaper and faster than the frontier.",
        [*_hardware(entries), *(_predicted(records, submissions) if predict else [])],
        caption="the cheapest first; in italics what another is cheaper and faster than",
    )
    texts["published.html"] = _rendered(
        "Published by others",
        "Numbers of 2018 to today that mlbench did not measure: other hardware, software and clocks.",
        [*_published()],
        caption="as its source gives them",
    )
    written = [folder / "index.html", *(folder / name for name in sorted(texts) if name != "index.html")]
    for path in written:
        path.write_text(texts[path.name], encoding="utf-8")
    runs += [(LOOSE, run) for run in records]
    return [*written, *publication.write(folder, entries, runs)]


def _rendered(title: str, question: str, sections: Sequence[Part], **values: Any) -> str:
    common: dict[str, Any] = {"tiers": {}, "studies": [], "filters": {}, "pages": PAGES}
    shown = common | {"title": title, "question": question, "sections": sections} | values
    return page.rendered("site.html", **shown)


def _page(submission: Checked) -> str:
    return f"{submission.entity}-{submission.name}.html"


def _about(submission: Checked, entries: Sequence[Entry]) -> StudyText:
    """Return a submission in words, for its page."""
    about, name = submission.about, f"{submission.entity}: {submission.name}"
    if about is None:
        return StudyText(name, "", ())
    link, paid = about.interconnect, about.price
    facts = (
        f"tier: {leaderboard.tier(submission, entries)}",
        f"by {about.entity}, {about.contact}",
        about.hardware,
        link.name + (f" at {link.gbit_per_s:g} Gbit/s" if link.gbit_per_s else ""),
        f"{usd(paid.usd_per_hour)} an hour and node, {paid.date}" if paid else "not for rent",
        f"licence {about.licence}",
        *submission.incomplete,
    )
    return StudyText(name, "What was handed in, and what its logs say.", (), facts=facts)


def _by_section(entries: Sequence[Entry]) -> list[list[Entry]]:
    sections: dict[str, list[Entry]] = {}
    for one in entries:
        sections.setdefault(one.section, []).append(one)
    return list(sections.values())


def _ranked(some: Sequence[Entry]) -> Part:
    """Return a leaderboard: time over workers, who is fastest and who is cheapest, and every point."""
    rows = []
    for one in some:
        point, about = one.point, one.submission.about
        cells = [
            Cell(str(one.rank or "-"), number=True),
            Cell(one.entity, one.curve, link=_page(one.submission)),
            Cell(f"{point.workers} x {point.backend}, {point.sync}"),
            Cell(about.hardware if about else point.hardware),
            cell(point.time_to_accuracy, "s"),
            cell(one.usd, "USD"),
            Cell(f"{point.reached} of {point.n}", number=True),
            Cell(one.tier, one.why if one.tier != leaderboard.COMPLETE else ""),
        ]
        filters = {"task": point.task, "workers": str(point.workers), "hardware": point.hardware}
        rows.append(Row(cells, one.rank is None, filters))
    timed = [one for one in some if one.rank is not None]
    entities = list(dict.fromkeys(one.entity for one in timed))
    shifts = side_by_side([one.point.workers for one in timed], len(entities))
    traces = []
    for style, entity in enumerate(entities):
        own = sorted((one for one in timed if one.entity == entity), key=lambda one: one.point.workers)
        times = [one.point.time_to_accuracy for one in own if one.point.time_to_accuracy]
        counts = [one.point.workers * shifts[style] for one in own]
        traces.append(Trace(entity, counts, [time.value for time in times], "marks", style, **ends(times)))
    workers, most = (
        [one.point.workers for one in timed],
        max((one.point.median_s for one in timed), default=0),
    )
    y = time_axis("time to accuracy", most, (0, None))
    chart = Chart.of(
        "time", "Time to accuracy over workers", about="", x=worker_axis(workers), y=y, traces=traces
    )
    return Part(some[0].section, some[0].point.task, Table(RANKED, rows), chart, _answer(timed))


def _answer(timed: Sequence[Entry]) -> str:
    """Return who is fastest and who is cheapest; "" where nothing may be compared."""
    if not timed:
        return ""
    fastest = timed[0]
    text = f"Fastest: {fastest.entity}, {leaderboard.numbers(fastest)} ({fastest.tier})."
    priced = [one for one in timed if one.usd and drawable(one.usd.value)]
    if not priced:
        return f"{text} Nobody states a price."
    cheapest = min(priced, key=lambda one: one.usd.value if one.usd else math.inf)
    return f"{text} Cheapest: {cheapest.entity}, {leaderboard.numbers(cheapest)} ({cheapest.tier})."


def _hardware(entries: Sequence[Entry]) -> list[Part]:
    """Return cost over time of every task and goal, all classes of hardware beside each other."""
    goals: dict[str, list[Entry]] = {}
    for one in entries:
        if one.rank is not None and one.usd and drawable(one.usd.value):
            goals.setdefault(one.section.rpartition("; ")[0], []).append(one)
    sections = []
    for title, some in goals.items():
        some.sort(key=lambda one: (one.usd.value if one.usd else math.inf, one.point.median_s))
        offers = {
            id(one): frontier.Offer(_machine(one), one.point.workers, one.point.time_to_accuracy, one.usd)
            for one in some
            if one.usd and one.point.time_to_accuracy
        }
        best = frontier.undominated(list(offers.values()))
        chart = frontier.frontier(list(offers.values()), title="Cost over time to accuracy", about=title)
        rows = [
            Row([Cell(_machine(one)), Cell(counted(one.point.workers, "worker")), cell(one.usd, "USD"),
                 cell(one.point.time_to_accuracy, "s"), Cell(one.tier)], offers[id(one)] not in best)
            for one in some
        ]  # fmt: skip
        table = Table(["hardware", "workers", "cost", "time", "tier"], rows)
        named = "; ".join(
            f"{_machine(one)}, {leaderboard.numbers(one)}" for one in some if offers[id(one)] in best
        )
        sections.append(Part(title, some[0].point.task, table, chart, f"On the frontier: {named}."))
    return sections


def _predicted(records: Sequence[Record], submissions: Sequence[Checked]) -> list[Part]:
    """Return the predictions from runs of each origin, which are never pooled, and from published runs."""
    several = [records, *(one.records for one in submissions)]
    own = [part for some in several for part in page.predicted(groups(some))]
    return [*own, *(part for module in plugins.forecasts() for part in module.published())]


def _machine(entry: Entry) -> str:
    about = entry.submission.about
    return f"{about.hardware if about else entry.point.hardware} ({entry.entity})"


def _published() -> list[Part]:
    """Return what others published of every task, as published_studies.yaml has it."""
    sections = []
    for task in sorted({one.task for one in published.load() if one.task}):
        shown, _ = tables.references(published.load(task=task))
        sections += [
            Part(f"{task}: {one.title}", task, one.table, notes=[OTHERS, *one.about]) for one in shown
        ]
    return sections


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


def _file_names(studies: dict[str, list[Record]], others: Set[str] = OWN) -> dict[str, str]:
    """Return a file name a study, of letters that every server takes; equal ones get a number."""
    names: dict[str, str] = {}
    for name in sorted(studies):
        stem = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip(".-") or "study"
        taken = {other.lower() for other in names.values()} | others
        endings = ("", *(f"-{number}" for number in range(2, len(studies) + 3)))
        ending = next(end for end in endings if f"{stem}{end}.html".lower() not in taken)
        names[name] = f"{stem}{ending}.html"
    return names

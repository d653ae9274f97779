"""A static site of results, to host anywhere: leaderboards with tiers, a page a submission and a study.

Pages have permanent names: ENTITY-DATE-HARDWARE.html of a submission, the name of a study, hardware.html
(cost over time) and published.html (what others published, which mlbench did not measure).
"""

import math
import re
from collections.abc import Iterator, Sequence, Set
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

from mlbench.analysis import published
from mlbench.analysis.chart import Chart, drawable, over_workers, side_by_side, time_axis, worker_axis
from mlbench.analysis.points import Point
from mlbench.config import plugins
from mlbench.record.format import counted, usd
from mlbench.record.official import IMPORTED
from mlbench.record.record import Record
from mlbench.report import leaderboard, page, publication, tables
from mlbench.report.charts import frontier
from mlbench.report.grouping import Group, groups
from mlbench.report.leaderboard import LeaderboardEntry
from mlbench.report.page import PagePart, StudyText
from mlbench.report.tables import Row, Table, TableCell, cell
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
    for record in records:
        studies.setdefault(record.experiment.study or SINGLE, []).append(record)
    names = _file_names(studies, {_page(submission).lower() for submission in submissions} | OWN)
    folder.mkdir(parents=True, exist_ok=True)
    texts: dict[str, str] = {}
    listed = []
    for name, some in sorted(studies.items()):
        days = sorted({record.started_at[:10] for record in some})
        span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        listed.append((name, names[name], len(some), span))
        question = "What do these runs show?" if name == SINGLE else ""
        texts[names[name]] = page.page(some, study=StudyText(name, question, ()))
    entries = leaderboard.entries(submissions)
    for submission in submissions:
        texts[_page(submission)] = page.page(submission.records, study=_about(submission, entries))
    runs = [(submission, run) for submission in submissions for run in submission.records]
    every = [*records, *(run for _, run in runs)]
    why = [f"Tier: {leaderboard.SELF}: {LOOSE.incomplete[0]}."]
    loose = [PagePart(group.title, group.task, _table(group), notes=why) for group in groups(records)]
    texts["index.html"] = _rendered(
        "Results",
        "Time to accuracy of every point, fastest first, with 95 % intervals.",
        [*(_ranked(list(some)) for _, some in groupby(entries, lambda entry: entry.section)), *loose],
        caption="medians of the runs; points in italics may not be compared",
        tiers=leaderboard.TIERS if entries else {},
        studies=listed,
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


def _rendered(title: str, question: str, sections: Sequence[PagePart], **values: Any) -> str:
    common: dict[str, Any] = {"tiers": {}, "studies": [], "filters": {}, "pages": PAGES}
    shown = common | {"title": title, "question": question, "sections": sections} | values
    return page.rendered("site.html", **shown)


def _page(submission: Checked) -> str:
    return f"{submission.entity}-{submission.name}.html"


def _about(submission: Checked, entries: Sequence[LeaderboardEntry]) -> StudyText:
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


def _ranked(some: Sequence[LeaderboardEntry]) -> PagePart:
    """Return a leaderboard: time over workers, who is fastest and who is cheapest, and every point."""
    rows = []
    for entry in some:
        point = entry.point
        cells = [
            TableCell(str(entry.rank or "-"), number=True),
            TableCell(entry.entity, entry.curve, link=_page(entry.submission)),
            TableCell(f"{point.workers} x {point.backend}, {point.sync}"),
            TableCell(entry.hardware),
            cell(point.time_to_accuracy, "s"),
            cell(entry.usd, "USD"),
            TableCell(leaderboard.reached(point), number=True),
            TableCell(entry.tier, entry.why if entry.tier != leaderboard.COMPLETE else ""),
        ]
        filters = {"task": point.task, "workers": str(point.workers), "hardware": point.hardware}
        rows.append(Row(cells, entry.rank is None, filters))
    timed = [entry for entry in some if entry.rank is not None]
    counts = [entry.point.workers for entry in timed]
    labels = list(dict.fromkeys(entry.label for entry in timed))
    shifts = side_by_side(counts, len(labels))
    traces = []
    for style, label in enumerate(labels):
        own = [entry.point for entry in timed if entry.label == label]
        times = [(point, point.time_to_accuracy) for point in sorted(own, key=lambda point: point.workers)]
        traces.append(over_workers(label, times, shift=shifts[style], kind="marks", style=style))
    y = time_axis("time to accuracy", max((entry.point.median_s for entry in timed), default=0), (0, None))
    chart = Chart.of("time", "Time to accuracy over workers", x=worker_axis(counts), y=y, traces=traces)
    curve = chart if len({*counts}) > 1 or len(timed) > 2 else None  # two points are in the table
    return PagePart(some[0].section, some[0].point.task, Table(RANKED, rows), curve, _answer(timed))


def _answer(timed: Sequence[LeaderboardEntry]) -> str:
    """Return who is fastest and who is cheapest; "" where nothing may be compared."""
    if not timed:
        return ""
    fastest = timed[0]
    text = f"Fastest: {fastest.entity}, {leaderboard.numbers(fastest)} ({fastest.tier})."
    priced = [entry for entry in timed if entry.usd and drawable(entry.usd.value)]
    if not priced:
        return f"{text} Nobody states a price."
    cheapest = min(priced, key=lambda entry: entry.usd.value if entry.usd else math.inf)
    return f"{text} Cheapest: {cheapest.entity}, {leaderboard.numbers(cheapest)} ({cheapest.tier})."


def _hardware(entries: Sequence[LeaderboardEntry]) -> Iterator[PagePart]:
    """Yield cost over time of every task, goal and version, all classes of hardware beside each other."""
    goals: dict[str, list[tuple[frontier.FrontierPoint, LeaderboardEntry]]] = {}
    for entry in entries:
        time, bill = entry.point.time_to_accuracy, entry.usd
        if entry.rank is not None and time and bill and drawable(bill.value):
            title, _, version = entry.section.rsplit("; ", 2)  # without the class of hardware
            machine = f"{entry.hardware} ({entry.label})"
            offer = frontier.FrontierPoint(machine, entry.point.workers, time, bill)
            goals.setdefault(f"{title}; {version}", []).append((offer, entry))
    for title, some in goals.items():
        some.sort(key=lambda pair: (pair[0].usd.value, pair[0].time.value))
        offers = [offer for offer, _ in some]
        best = frontier.undominated(offers)
        chart = frontier.frontier(offers, title="Cost over time to accuracy", about=title)
        rows = [
            Row([TableCell(offer.machine), TableCell(counted(offer.workers, "worker")),
                 cell(offer.usd, "USD"), cell(offer.time, "s"), TableCell(entry.tier)], offer not in best)
            for offer, entry in some
        ]  # fmt: skip
        table = Table(["hardware", "workers", "cost", "time", "tier"], rows)
        named = "; ".join(
            f"{entry.hardware} ({entry.entity}), {leaderboard.numbers(entry)}"
            for offer, entry in some
            if offer in best
        )
        yield PagePart(title, some[0][1].point.task, table, chart, f"On the frontier: {named}.")


def _predicted(records: Sequence[Record], submissions: Sequence[Checked]) -> list[PagePart]:
    """Return the predictions from runs of each origin, which are never pooled, and from published runs."""
    several = [records, *(submission.records for submission in submissions)]
    own = [part for some in several for part in page.predicted(groups(some))]
    return [*own, *(part for module in plugins.forecasts() for part in module.published(date.today()))]


def _published() -> Iterator[PagePart]:
    """Yield what others published of every task, as published_studies.yaml has it."""
    for task in sorted({result.task for result in published.load() if result.task}):
        shown, _ = tables.references(published.load(task=task))
        for reference in shown:
            notes = [OTHERS, *reference.about]
            yield PagePart(f"{task}: {reference.title}", task, reference.table, notes=notes)


def _table(group: Group) -> Table:
    """Return the points of a task, fastest first; points that may not be compared come last, apart."""
    pairs = [(curve.label, point) for curve in group.curves for point in curve.points]
    pairs.sort(key=lambda pair: (pair[1].exclusion_reason is not None, pair[1].median_s))
    return Table(HEADINGS, [_row(label, point) for label, point in pairs])


def _row(label: str, point: Point) -> Row:
    eligible = sum(set(record.official_reasons) <= {IMPORTED} for record in point.records)
    studies = sorted({record.experiment.study or SINGLE for record in point.records})
    cells = [
        TableCell(f"{point.workers} x {point.backend}, {point.sync}", label),
        TableCell(point.hardware),
        cell(point.time_to_accuracy, "s"),
        cell(point.samples_per_s, ""),
        cell(point.usd, "USD"),
        TableCell(leaderboard.reached(point), number=True),
        TableCell(f"{eligible} of {point.n}", number=True),
        TableCell(", ".join(studies)),
    ]
    filters = {"task": point.task, "workers": str(point.workers), "hardware": point.hardware}
    return Row(cells, point.exclusion_reason is not None, filters)


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

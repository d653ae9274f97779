"""Write a static site of results: leaderboards with tiers, a page a submission and a study.

Pages have permanent names: ENTITY-DATE-HARDWARE.html of a submission and the name of a study. hardware.html
has cost over time. published.html has the results of others, which mlbench did not measure.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

from mlbench.analysis import published
from mlbench.analysis.bootstrap import drawable
from mlbench.analysis.points import MedianEstimate, Point
from mlbench.config import plugins
from mlbench.config.errors import UserError
from mlbench.record import run_folders
from mlbench.record.format import counted, usd
from mlbench.record.official import IMPORTED
from mlbench.record.record import Record
from mlbench.report import leaderboard, page, publication, tables
from mlbench.report.charts import frontier
from mlbench.report.charts.ranking import ranking
from mlbench.report.grouping import Group, groups
from mlbench.report.leaderboard import LeaderboardEntry
from mlbench.report.page import PagePart, StudyText
from mlbench.report.tables import Row, Table, TableCell, cell
from mlbench.tasks import registry
from mlbench.tracking import archive
from mlbench.tracking.submission import Checked, check, folders

SINGLE = "single runs"
LOOSE = Checked("", "", None, (), (), ("handed in without submission.yaml",), {})  # runs of no submission
PAGES = [
    ("Leaderboard", "index.html"), ("Hardware", "hardware.html"), ("Published by others", "published.html"),
]  # fmt: skip
Drawn = tuple[str, MedianEstimate | None, MedianEstimate | None]  # label, time in s, cost in USD
OTHERS = "Tier: published, and not measured by mlbench."
OWN = {"index.html", "hardware.html", "published.html"}
HEADINGS = [
    "point", "hardware", "time to accuracy", "samples / s", "cost", "runs", "claims eligible", "study",
]  # fmt: skip
RANKED = ["rank", "entity", "time to accuracy", "cost", "workers", "goal reached", "tier", "hardware"]
UNPRICED = "No submission has a price. hardware.price.usd_per_hour= gives a run the price of its machine."
READING = (
    "mlbench trains a model on several workers (processes) until it reaches a goal. Each dot is the median "
    "of a submission's runs, each bar its 95 % interval. Compare only inside a chart: it has one task, goal, "
    "class of hardware and version.",
)
WORDS = {
    "mini, official": "scales: small data and models that fit a laptop, or the published data and recipe",
    "closed, open division": "the recipe unchanged, or with changes that the record lists",
}


def collect(
    paths: Sequence[Path], complain: Callable[[str], Any]
) -> tuple[list[Record], list[Checked], list[str]]:
    """Return the runs of folders and exports, the accepted submissions, and why others are refused.

    `complain` is called with a sentence for every folder of a run whose record cannot be used.
    """
    refused: list[str] = []
    checked = [check(folder) for path in paths for folder in folders(path)]
    refused += [f"{result.entity}/{result.name}: {why}" for result in checked for why in result.refusals]
    runs = [run for path in paths for run in run_folders.readable(path, complain)]
    zips = [str(path) for path in paths if not (folders(path) or run_folders.names(path))]
    for _, run, _ in archive.load(archive.paths(zips)):
        if isinstance(run, UserError):
            refused.append(str(run))
        else:
            runs.append(run)
    accepted = [result for result in checked if not result.refusals]
    return list({run.run_id: run for run in runs}.values()), accepted, refused


def write(
    records: Sequence[Record], folder: Path, *, submissions: Sequence[Checked] = (), predict: bool = False
) -> list[Path]:
    """Write the site into the folder, and return its paths, index.html first.

    - records: they belong to no submission. They are shown by study, without ranks.
    - predict: whether the page of hardware also has predictions. They come from all records and from the runs
      that MLBench published. A fit and its intervals take some 10 s of a CPU (2026-11-25).
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
    loose = [_loose(group) for group in groups(records)]
    texts["index.html"] = _rendered(
        "Results",
        "Time and cost until distributed training reaches its goal.",
        [*(_ranked(list(some)) for _, some in groupby(entries, lambda entry: entry.section)), *loose],
        reading=READING,
        caption="Medians of the runs. Points in italics may not be compared.",
        words=WORDS | (leaderboard.TIERS if entries else {}),
        studies=listed,
        filters=page.filters(every),
    )
    texts["hardware.html"] = _rendered(
        "Hardware",
        "Cost of the goal over its time: no point is both cheaper and faster than the frontier.",
        [*_hardware(entries), *(_predicted(records, submissions) if predict else [])],
        caption="the cheapest first, in italics points that another beats in both",
        reading=() if any(entry.usd for entry in entries) else [UNPRICED],
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
    common: dict[str, Any] = {"words": {}, "studies": [], "filters": {}, "pages": PAGES, "reading": ()}
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
    return StudyText(name, "The submissions, with the evidence of their logs.", (), facts=facts)


def _ranked(some: Sequence[LeaderboardEntry]) -> PagePart:
    """Return a leaderboard: time and cost of each submission, who is first, and every point."""
    rows = []
    for entry in some:
        point = entry.point
        cells = [
            TableCell(str(entry.rank or "-"), number=True),
            TableCell(entry.entity, entry.curve, link=_page(entry.submission)),
            cell(point.time_to_accuracy, "s"),
            cell(entry.usd, "USD"),
            TableCell(str(point.workers), f"{point.backend}, {point.sync}", number=True),
            TableCell(leaderboard.reached(point), number=True),
            TableCell(entry.tier, entry.why if entry.tier != leaderboard.COMPLETE else ""),
            TableCell(entry.hardware),
        ]
        filters = {"task": point.task, "workers": str(point.workers), "hardware": point.hardware}
        rows.append(Row(cells, entry.rank is None, filters))
    timed = [entry for entry in some if entry.rank is not None]
    named = list(zip(_labels(timed), timed, strict=True))
    drawn = [(label, entry.point.time_to_accuracy, entry.usd) for label, entry in named]
    return _part(some[0].point, some[0].about, Table(RANKED, rows), drawn, _answer(named))


def _labels(some: Sequence[LeaderboardEntry]) -> list[str]:
    """Return entity, workers and curve of each, with the submission's name if these are not enough."""
    short = [_label(entry.entity, entry.point, entry.curve) for entry in some]
    full = [_label(f"{entry.entity} {entry.submission.name}", entry.point, entry.curve) for entry in some]
    return [long if short.count(label) > 1 else label for label, long in zip(short, full, strict=True)]


def _label(entity: str, point: Point, curve: str) -> str:
    return ", ".join(filter(None, [entity, counted(point.workers, "worker"), curve]))


def _loose(group: Group) -> PagePart:
    """Return the runs of no submission, fastest first. Points that may not be compared come last, apart."""
    pairs = [(curve.label, point) for curve in group.curves for point in curve.points]
    pairs.sort(key=lambda pair: (pair[1].exclusion_reason is not None, pair[1].median_s))
    alike = [(label, point) for label, point in pairs if point.exclusion_reason is None]
    drawn = [(_label("", point, label), point.time_to_accuracy, point.usd) for label, point in alike]
    table = Table(HEADINGS, [_row(label, point) for label, point in pairs])
    about = "; ".join(filter(None, [group.differences, f"{leaderboard.SELF}, {LOOSE.incomplete[0]}"]))
    return _part(pairs[0][1], about, table, drawn)


def _part(point: Point, about: str, table: Table, drawn: Sequence[Drawn], answer: str = "") -> PagePart:
    """Return a part whose title is task, scale and goal. What the task trains and `about` are below it."""
    title = f"{point.task}, {point.scale}{f': {point.goal}' if point.goal else ''}"
    about = "; ".join(filter(None, [_words(point.task), about]))
    times = ranking("time", [(label, time) for label, time, _ in drawn])
    costs = ranking("cost", [(label, bill) for label, _, bill in drawn])
    if times.layer and not costs.layer:
        answer = f"{answer} No price given.".strip()
    return PagePart(title, point.task, table, times, answer, (), costs, about)


def _words(task: str) -> str:
    """Return what the task trains: the first sentence of its module, without "Task 3a: "."""
    with suppress(UserError):  # a task of a package that is not installed here
        words = re.sub(r"^Task \w+: ", "", registry.load(task).__doc__ or "").partition(".")[0]
        return words[:1].upper() + words[1:]
    return ""


def _answer(named: Sequence[tuple[str, LeaderboardEntry]]) -> str:
    """Return the fastest and the cheapest, or "" if nothing may be compared."""
    times = [(label, one, time) for label, one in named if (time := one.point.time_to_accuracy)]
    priced = [(label, one, bill) for label, one in named if (bill := one.usd) and drawable(bill.value)]
    return " ".join(filter(None, [_least("Fastest", "time", times), _least("Cheapest", "cost", priced)]))


def _least(name: str, quantity: str, some: Sequence[tuple[str, LeaderboardEntry, MedianEstimate]]) -> str:
    """Return the entry with the least median. It is called `name` only if the intervals show that."""
    if not some:
        return ""
    (_, entry, least), *others = sorted(some, key=lambda one: one[2].value)
    near = [label for label, _, value in others if (value.low or 0) <= (least.high or math.inf)]
    first = f"Lowest median {quantity}" if near else name
    text = f"{first}: {entry.entity}, {leaderboard.numbers(entry)} ({entry.tier})."
    return text + (f" The intervals do not separate it from {' and '.join(near)}." if near else "")


def _hardware(entries: Sequence[LeaderboardEntry]) -> Iterator[PagePart]:
    """Yield cost over time of every task, goal and version, with all classes of hardware in one chart."""
    goals: dict[str, list[tuple[frontier.FrontierPoint, LeaderboardEntry]]] = {}
    for entry in entries:
        time, bill = entry.point.time_to_accuracy, entry.usd
        if entry.rank is not None and time and bill and drawable(bill.value):
            title, _, version = entry.section.rsplit("; ", 2)  # without the class of hardware
            machine = f"{entry.hardware} ({', '.join(filter(None, [entry.entity, entry.curve]))})"
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
    """Yield the published results of every task, from published_studies.yaml."""
    for task in sorted({result.task for result in published.load() if result.task}):
        shown, _ = tables.references(published.load(task=task))
        for reference in shown:
            notes = [OTHERS, *reference.about]
            yield PagePart(f"{task}: {reference.title}", task, reference.table, notes=notes)


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
    """Return a file name a study, of letters that every server takes. Equal names get a number."""
    names: dict[str, str] = {}
    for name in sorted(studies):
        stem = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip(".-") or "study"
        taken = {other.lower() for other in names.values()} | others
        endings = ("", *(f"-{number}" for number in range(2, len(studies) + 3)))
        ending = next(end for end in endings if f"{stem}{end}.html".lower() not in taken)
        names[name] = f"{stem}{ending}.html"
    return names

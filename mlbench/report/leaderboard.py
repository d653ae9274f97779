"""Rank the points of submissions, each with a tier for how far it is trusted.

Ranks hold inside one task, goal, network, division, class of hardware and Major.Minor of mlbench alone
(RULES.md, rule R9). Runs of two submissions are never pooled.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlbench.analysis.points import MedianEstimate, Point, differences
from mlbench.config.errors import comparable
from mlbench.record import official
from mlbench.record.format import counted, duration, usd
from mlbench.record.record import Record
from mlbench.report.grouping import ScalingCurve, groups, task_labels
from mlbench.tracking.submission import Checked

SELF, COMPLETE, REPRODUCED, OFFICIAL = "self-reported", "logs complete", "reproduced", "official"
TIERS = {  # from the weakest on
    SELF: "numbers with a record whose log, checksum or attempt is missing",
    COMPLETE: "every record follows from its sealed log, and every planned attempt is present",
    REPRODUCED: "another entity measured the same experiment inside the 95 % interval",
    OFFICIAL: "an official point (RULES.md) of a released mlbench: closed, official scale, five drawn seeds",
}


@dataclass(frozen=True)
class LeaderboardEntry:
    """One point of one submission.

    - section: what it is ranked in. about: all that its section names but task, scale and goal.
    - curve: what distinguishes it from other points there, e.g. "precision bf16".
    - usd: to the goal, at the price that was paid, else at the profile's, or None without either.
    - rank: among the comparable points of its section, fastest first. None if it may not be compared.
    """

    submission: Checked
    section: str
    about: str
    curve: str
    point: Point
    usd: MedianEstimate | None
    tier: str
    why: str
    rank: int | None = None

    @property
    def entity(self) -> str:
        return self.submission.entity

    @property
    def hardware(self) -> str:
        """The submission's name for its machines, else their profile."""
        about = self.submission.about
        return about.hardware if about else self.point.hardware

    @property
    def name(self) -> str:
        """The point's permanent name: that of the submission, and the beginning of the key."""
        return f"{self.entity}/{self.submission.name}/{self.point.key[:12]}"


def hardware_class(record: Record) -> str:
    """Return the hardware of a run, coarsely: the processor that its nodes report, on one node or several."""
    gpus = [gpu.kind for node in record.nodes for gpu in node.gpus]
    on_gpu = record.experiment.backend.device == "cuda"
    processor = " and ".join(dict.fromkeys(gpus)) or "GPU" if on_gpu else "CPU"
    return f"{processor}, {'one node' if len(record.nodes) < 2 else 'several nodes'}"


def entries(submissions: Iterable[Checked]) -> list[LeaderboardEntry]:
    """Return the points of all submissions, section by section, with tiers and ranks, fastest first."""
    every = [entry for submission in submissions for entry in _of_one(submission)]
    every = [_reproduced(entry, every) for entry in _with_curves(every)]
    every.sort(key=lambda entry: (entry.section, _apart(entry), entry.point.median_s, entry.name))
    ranked: list[LeaderboardEntry] = []
    places: dict[str, int] = {}
    for entry in every:
        if not _apart(entry) and entry.point.median_s < math.inf:
            places[entry.section] = places.get(entry.section, 0) + 1
            entry = replace(entry, rank=places[entry.section])
        ranked.append(entry)
    return ranked


def _with_curves(every: Sequence[LeaderboardEntry]) -> Iterator[LeaderboardEntry]:
    """Yield the entries with the task fields that differ in their section, over all submitters."""
    sections: dict[str, list[LeaderboardEntry]] = {}
    for entry in every:
        sections.setdefault(entry.section, []).append(entry)
    for some in sections.values():
        for entry, labels in zip(some, task_labels([entry.point for entry in some]), strict=True):
            others = [label for label in labels if f" {label} " not in f" {entry.curve} "]
            yield replace(entry, curve=" ".join(filter(None, [entry.curve, *others])))


def _apart(entry: LeaderboardEntry) -> bool:
    return entry.point.exclusion_reason is not None


def _of_one(submission: Checked) -> Iterable[LeaderboardEntry]:
    classes: dict[tuple[str, str, str], list[Record]] = {}
    # A run that failed or was killed describes no node: it is an attempt at what others of its key measured.
    described = {run.key: hardware_class(run) for run in submission.records if run.nodes}
    for run in submission.records:
        machines = hardware_class(run) if run.nodes else described.get(run.key, hardware_class(run))
        names = _division(run), machines, comparable(run.mlbench)
        classes.setdefault(names, []).append(run)
    for (division, machines, version), runs in classes.items():
        for group in groups(runs, histories=submission.histories):
            data = "" if group.other_data else group.dataset
            group = replace(group, ambiguous=False)  # the same for all submissions
            apart = f"{division}; {machines}; mlbench {version}"
            section = f"{group.title}{data and f', {data}'}; {apart}"
            about = "; ".join(filter(None, [group.differences, data and f"data {data}", apart]))
            for curve in group.curves:
                yield from (_entry(submission, section, about, curve, point) for point in curve.points)


def _division(run: Record) -> str:
    """Return what separates ranks: the division, its deviations if it is closed, and a script."""
    name = run.experiment.division.name
    deviations = " with deviations" if name == "closed" and run.deviations else ""
    sources = getattr(run.experiment.task, "sources", None)
    return f"{name} division{deviations}{f', script {sources[:12]}' if sources else ''}"


def _entry(
    submission: Checked, section: str, about: str, curve: ScalingCurve, point: Point
) -> LeaderboardEntry:
    price = submission.about.price if submission.about else None
    bill = point.usd
    if price and point.time_to_accuracy:
        nodes = max(point.nodes, *(len(run.nodes) for run in point.records))  # a profile may not say how many
        bill = point.time_to_accuracy.times(nodes * price.usd_per_hour / 3600)
    against = [reason for reason in point.unofficial if reason != official.IMPORTED]
    tier, why = COMPLETE, "; ".join(against[:1])
    if submission.incomplete:
        tier, why = SELF, submission.incomplete[0]
    elif not against:
        tier, why = OFFICIAL, ""
    return LeaderboardEntry(submission, section, about, curve.label, point, bill, tier, why)


def _reproduced(entry: LeaderboardEntry, every: Sequence[LeaderboardEntry]) -> LeaderboardEntry:
    """Return the entry as reproduced if another entity's median of the same experiment is inside it."""
    time = entry.point.time_to_accuracy
    if entry.tier != COMPLETE or time is None or time.low is None or time.high is None:
        return entry
    for other in every:
        alike = other.section == entry.section and other.point.workers == entry.point.workers
        if other.entity != entry.entity and other.tier != SELF and alike:
            within = time.low <= other.point.median_s <= time.high < math.inf
            if within and not differences(entry.point, other.point):
                return replace(entry, tier=REPRODUCED, why=f"by {other.entity} in {other.submission.name}")
    return entry


def tier(submission: Checked, every: Sequence[LeaderboardEntry]) -> str:
    """Return the strongest tier that all points of a submission have."""
    order = list(TIERS)
    own = [order.index(entry.tier) for entry in every if entry.submission is submission]
    return order[min(own, default=0)]


def row(entry: LeaderboardEntry) -> dict[str, Any]:
    """Return an entry as JSON types: times in s, prices in USD."""
    point, bill = entry.point, entry.usd
    time = point.time_to_accuracy
    values = {
        "name": entry.name, "entity": entry.entity, "submission": entry.submission.name,
        "section": entry.section, "rank": entry.rank, "tier": entry.tier, "why": entry.why,
        "task": point.task, "scale": point.scale, "goal": str(point.goal) if point.goal else None,
        "curve": entry.curve, "workers": point.workers, "backend": point.backend, "sync": point.sync,
        "network": point.network,
        "hardware": entry.hardware, "nodes": point.nodes,
        "time_to_accuracy_s": time.value if time else None, "low_s": time.low if time else None,
        "high_s": time.high if time else None, "cost_usd": bill.value if bill else None,
        "runs": point.n, "reached": point.reached, "left_out": len(point.left_out),
        "not_comparable": point.exclusion_reason,
        "key": point.key, "run_ids": [run.run_id for run in point.records],
    }  # fmt: skip
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


def verdict(submission: Checked, every: Sequence[LeaderboardEntry]) -> dict[str, Any]:
    """Return the result of `results check` for a submission, as JSON types."""
    own = [] if submission.refusals else [row(entry) for entry in every if entry.submission is submission]
    return {
        "submission": f"{submission.entity}/{submission.name}",
        "accepted": not submission.refusals,
        "tier": None if submission.refusals else tier(submission, every),
        "refusals": list(submission.refusals),
        "incomplete": list(submission.incomplete),
        "points": own,
    }


def lines(submission: Checked, every: Sequence[LeaderboardEntry]) -> list[str]:
    """Return the lines that `results check` prints of a submission."""
    name = f"{submission.entity}/{submission.name}"
    if submission.refusals:
        return [f"{name}: refused", *(f"  {refusal}" for refusal in submission.refusals)]
    own = [entry for entry in every if entry.submission is submission]
    head = f"{name}: accepted, {tier(submission, every)}, {counted(len(submission.records), 'run')}"
    return [
        head,
        *(f"  {entry.section}: {numbers(entry)}" for entry in own),
        *(f"  {reason}" for reason in submission.incomplete),
    ]


def markdown(submission: Checked, every: Sequence[LeaderboardEntry]) -> str:
    """Return the comment of a pull request. Text from a submission is put in code, so it is only text."""
    name = f"`{_code(submission.entity)}/{_code(submission.name)}`"
    if submission.refusals:
        listed = [f"- `{_code(refusal)}`" for refusal in submission.refusals]
        return "\n".join([f"### {name}: refused", "", *listed, ""])
    own = [entry for entry in every if entry.submission is submission]
    table = ["| point | time to the goal | cost | goal reached | tier |", "|---|--:|--:|--:|---|"]
    for entry in own:
        workers = f"{entry.point.workers} x {entry.point.backend}"
        what = f"`{_code(', '.join(filter(None, [entry.section, workers, entry.curve])))}`"
        bill = usd(entry.usd.value) if entry.usd and math.isfinite(entry.usd.value) else "-"
        table.append(f"| {what} | {_time(entry)} | {bill} | {reached(entry.point)} | {entry.tier} |")
    notes = [f"- `{_code(reason)}`" for reason in submission.incomplete]
    head = f"### {name}: accepted, {tier(submission, every)}"
    return "\n".join([head, "", *table, "", *notes, ""])


def numbers(entry: LeaderboardEntry) -> str:
    """Return workers, curve, time and cost, e.g. "2 workers, precision bf16, 11 s (10 s to 13 s)"."""
    bill = usd(entry.usd.value) if entry.usd and math.isfinite(entry.usd.value) else ""
    return ", ".join(filter(None, [counted(entry.point.workers, "worker"), entry.curve, _time(entry), bill]))


def reached(point: Point) -> str:
    """Return in how many of its runs a point reached its goal, and how many further ones do not count."""
    beside = f", {len(point.left_out)} left out" if point.left_out else ""
    return f"{point.reached} of {point.n}{beside}"


def _time(entry: LeaderboardEntry) -> str:
    time = entry.point.time_to_accuracy
    if time is None or not math.isfinite(time.value):
        return "goal not reached" if entry.point.goal else "no goal"
    if time.low is None or time.high is None or not math.isfinite(time.high):
        return duration(time.value)
    return f"{duration(time.value)} ({duration(time.low)} to {duration(time.high)})"


def _code(text: str) -> str:
    """Return a text that cannot end the code or the table cell that contains it."""
    return " ".join(text.replace("`", "'").replace("|", "/").split())

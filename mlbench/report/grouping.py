"""Name what the runs of a study have in common and how its curves differ."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from mlbench.analysis import compare, stragglers
from mlbench.analysis.points import SOURCE, Point, points
from mlbench.analysis.speedup import Speedup, scaling_curves, speedups
from mlbench.config.goal import Goal
from mlbench.record import format
from mlbench.record.attempts import History
from mlbench.record.format import counted
from mlbench.record.record import Record

LABELS = ("task", "scale", "recipe", "backend", "sync", "hardware", "network")  # fields of Point
OWN_FILES = ("_file", "_files", "_folder")  # ends of the fields by which a user names custom data
LONG = 40  # letters of a value in a label; a longer value is cut, and a checksum is added
SPLIT = "test"  # what a task that can validate on something else validates on


@dataclass(frozen=True)
class ScalingCurve:
    """Points that differ in their number of workers alone, and the speed-ups among them."""

    label: str  # what distinguishes it from the others ("" for the only one)
    speedups: tuple[Speedup, ...]

    @property
    def points(self) -> list[Point]:
        return [speedup.point for speedup in self.speedups]

    @property
    def compared(self) -> list[Speedup]:
        """Its points among which the page names the fastest and the cheapest."""
        reached = [speedup for speedup in self.speedups if speedup.point.median_s < math.inf]
        return [speedup for speedup in reached if speedup.point.exclusion_reason is None]

    @property
    def fastest(self) -> float:
        """The least median time to the goal of its points that speed-ups may use, s (inf without any)."""
        return min((speedup.point.median_s for speedup in self.compared), default=math.inf)

    @property
    def prefix(self) -> str:
        """The label before a sentence about the curve."""
        return f"{self.label}: " if self.label else ""

    def named(self, what: str) -> str:
        """Return a legend's entry."""
        return f"{self.label}, {what}" if self.label else what

    @property
    def published(self) -> bool:
        return self.speedups[0].point.source != SOURCE


@dataclass(frozen=True)
class Group:
    """The curves that may share one chart: one task, one scale, one goal, the same data.

    - dataset: its name, or "" if a user's files replace it.
    - other_data: these files, or another split than the task's, in words. "" if the runs were trained and
      judged on the published data.
    """

    task: str
    scale: str
    goal: Goal | None
    dataset: str
    other_data: str
    curves: tuple[ScalingCurve, ...]
    ambiguous: bool = False  # whether only its data set distinguishes it from another group

    @property
    def points(self) -> list[Point]:
        return [point for curve in self.curves for point in curve.points]

    @property
    def own(self) -> list[ScalingCurve]:
        """Curves measured by mlbench, or the published ones if there are no others."""
        return [curve for curve in self.curves if not curve.published] or list(self.curves)

    @property
    def compared(self) -> list[Point]:
        """The points among which the page names the fastest and the cheapest."""
        return [speedup.point for curve in self.own for speedup in curve.compared]

    @property
    def records(self) -> list[Record]:
        return [record for point in self.points for record in point.records]

    @property
    def target(self) -> str:
        """The goal with its unit, such as accuracy >= 89 %, or "" without one."""
        if self.goal is None:
            return ""
        unit = self.points[0].records[0].experiment.task.metric_unit
        return f"{self.goal.metric} {format.target(self.goal, unit)}"

    @property
    def network(self) -> str:
        """The emulated networks in words, or "" for the machines' real one."""
        names = dict.fromkeys(point.network for point in self.points if point.emulated)
        return f"emulated network {'; '.join(names)}" if names else ""

    @property
    def title(self) -> str:
        """What distinguishes the group from the others of a study. An emulated network is always named."""
        first = ", ".join(filter(None, (self.task, self.scale, self.differences)))
        return f"{first}: {self.target}" if self.goal else first

    @property
    def differences(self) -> str:
        """The data and the network in words, as far as they differ from the task's and from the real one."""
        return ", ".join(filter(None, (self._data, self.network)))

    @property
    def heading(self) -> str:
        """The title above an answer, which also names a missing goal."""
        what = ", ".join(filter(None, (f"{self.task} {self.scale}", self._data)))
        return ", ".join(filter(None, (what, f"goal {self.target or 'none'}", self.network)))

    @property
    def _data(self) -> str:
        return " ".join(filter(None, (self.dataset if self.ambiguous else "", self.other_data)))

    @property
    def about(self) -> str:
        """The lines below every title. The data come last, as file names may be longer than the picture."""
        hardware = dict.fromkeys(point.hardware for point in self.points)
        repeats = sorted({point.n for point in self.points})
        n = f"{repeats[0]} to {repeats[-1]}" if len(repeats) > 1 else f"{repeats[0]}"
        goal = f", {self.target}" if self.goal else ""
        data = " ".join(filter(None, (self.dataset, self.other_data)))
        network = f", {self.network}" if self.network else ""
        first = f"{self.task}, {self.scale}{goal}, hardware {', '.join(hardware)}{network}"
        return f"{first}, n = {n} a point, data {data}"


def groups(
    records: Sequence[Record],
    *,
    with_disturbed: bool = False,
    histories: Mapping[str, History] | None = None,
) -> list[Group]:
    """Return the records grouped by what may be compared at all. Measured runs come before published ones.

    `with_disturbed`, `histories`: as `points` takes them.
    """
    all_points = points(records, with_disturbed=with_disturbed, histories=histories)
    compared = {id(speedup.point): speedup for speedup in speedups(all_points)}
    together: dict[tuple[str, ...], list[list[Point]]] = {}
    for curve in scaling_curves(all_points):
        together.setdefault(page(curve[0]), []).append(curve)
    made = [_group(some, compared) for _, some in sorted(together.items())]
    titles = Counter(group.title for group in made)
    return [replace(group, ambiguous=titles[group.title] > 1) for group in made]


def page(point: Point) -> tuple[str, ...]:
    """Return what compared points share."""
    data = compare.data(point)
    emulated = "emulated" if point.emulated else ""  # never in one chart with real networks
    return point.task, point.scale, str(point.goal), _other_data(data), repr(data), emulated


def workers(point: Point) -> str:
    """Return the point's number of workers in words."""
    return counted(point.workers, "worker")


def tables(group: Group) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables that the runs of a group measured, by the label of their point."""
    by_label = {
        f"{curve.prefix}{workers(point)}": [row for record in point.records for row in record.table]
        for curve in group.curves
        for point in curve.points
    }
    return {label: rows for label, rows in by_label.items() if rows}


def disturbances(group: Group) -> Iterator[str]:
    """Yield how many runs of each point were disturbed, and by what, one sentence a point."""
    for curve in group.curves:
        for point in curve.points:
            runs = point.left_out or point.disturbed
            if runs:
                what = "left out" if point.left_out else "counted, though disturbed"
                share = of(len(runs), point.n + len(point.left_out))
                reasons = "; ".join(dict.fromkeys(runs.values()))
                yield f"{curve.prefix}{workers(point)}: {share} {what}: {reasons}."


def waiting(group: Group) -> Iterator[str]:
    """Yield which rank kept the others waiting, one sentence a point, of the run in which it did so most."""
    for curve in group.curves:
        for point in curve.points:
            late = [rank for run in point.records if (rank := stragglers.of_run(run))]
            if late:
                worst = max(late, key=lambda rank: rank.median_s)
                share = f"in {of(len(late), point.n)} a rank kept the others waiting"
                yield f"{curve.prefix}{workers(point)}: {share}, {stragglers.sentence(worst)}."


def of(part: int, whole: int) -> str:
    """Return how many runs of all, e.g. 1 of 3 runs."""
    return f"{part} of {counted(whole, 'run')}"


def reasons(curve: ScalingCurve, *, excluded_only: bool = False) -> list[str]:
    """Return why points have no speed-up, one sentence a reason."""
    by_reason: dict[str, list[str]] = {}
    for speedup in curve.speedups:
        why = speedup.point.exclusion_reason if excluded_only else speedup.why
        if why:
            by_reason.setdefault(why, []).append(str(speedup.point.workers))
    return [
        f"{curve.prefix}k = {', '.join(counts)} has no speed-up: {why}." for why, counts in by_reason.items()
    ]


def _group(some: list[list[Point]], compared: dict[int, Speedup]) -> Group:
    first = some[0][0]
    data = compare.data(first)
    return Group(
        first.task,
        first.scale,
        first.goal,
        dataset="" if _own_files(data) else str(data.get("task.dataset", "")),
        other_data=_other_data(data),
        curves=_labelled(some, compared),
    )


def _other_data(data: dict[str, Any]) -> str:
    """Return a user's files or the other split, as written on the command line, or "" for neither."""
    plain = {"task.dataset": data.get("task.dataset"), "task.validation": SPLIT}
    differing = {name: value for name, value in data.items() if value != plain.get(name)}
    if not _own_files(data):
        differing = {name: value for name, value in differing.items() if name in plain}
    return " ".join(f"{name}={value}" for name, value in differing.items())


def _own_files(data: dict[str, Any]) -> bool:
    return any(name.endswith(OWN_FILES) for name in data)


def _labelled(some: list[list[Point]], compared: dict[int, Speedup]) -> tuple[ScalingCurve, ...]:
    """Return the curves with labels of what differs among them, in well-known fields if those do."""
    ordered = sorted(some, key=lambda curve: curve[0].source != SOURCE)
    telling = [name for name in LABELS if len({getattr(curve[0], name) for curve in some}) > 1]
    labels = [[str(getattr(curve[0], name)) for name in telling] for curve in ordered]
    if len(set(map(tuple, labels))) < len(labels):
        fields = [dict(curve[0].series) for curve in ordered]
        for name in sorted(set().union(*fields)):
            values = [_label(name, mapping) for mapping in fields]
            longer = [[*label, value] for label, value in zip(labels, values, strict=True)]
            if len(set(map(tuple, longer))) > len(set(map(tuple, labels))):
                labels = longer
    return tuple(
        ScalingCurve(
            " ".join(filter(None, [*label, "published" if curve[0].source != SOURCE else ""])),
            tuple(compared[id(point)] for point in curve),
        )
        for label, curve in zip(labels, ordered, strict=True)
    )


def task_labels(points: Sequence[Point]) -> list[list[str]]:
    """Return of each point the task's fields in which some of them differ, e.g. ["precision bf16"]."""
    fields = [dict(point.series) for point in points]
    names = [name for name in sorted(set().union(*fields)) if name.startswith("task.")]
    differing = [name for name in names if len({mapping.get(name, "null") for mapping in fields}) > 1]
    return [[_label(name, mapping) for name in differing] for mapping in fields]


def _label(name: str, fields: Mapping[str, str]) -> str:
    return f"{name.removeprefix('task.')} {_value(fields.get(name, 'null'))}"


def _value(json_text: str) -> str:
    """Return a field's value for a label, which is one line. Different values stay different."""
    value = compare.parsed(json_text)
    text = "null" if value is None else str(value)  # as one would write it on the command line
    text = text if text.isprintable() else json_text
    return text if len(text) <= LONG else f"{text[: LONG - 12]}... {crc32(text.encode()):08x}"

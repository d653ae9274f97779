"""What the runs of a study have in common and what tells its families apart, in words."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from mlbench.record import Record
from mlbench.speedup import Point, Speedup, families, points, speedups
from mlbench.speedup.points import OURS
from mlbench.units import counted

LABELS = ("task", "scale", "recipe", "backend", "sync", "network", "hardware")  # fields of Point


@dataclass(frozen=True)
class Family:
    """Points that differ in their number of workers alone, and the speed-ups among them."""

    label: str  # what tells it from the others; "" for the only one
    speedups: tuple[Speedup, ...]

    @property
    def points(self) -> list[Point]:
        return [one.point for one in self.speedups]

    @property
    def prefix(self) -> str:
        """The label before a sentence about the family."""
        return f"{self.label}: " if self.label else ""

    def named(self, what: str) -> str:
        """Return a legend's entry."""
        return f"{self.label}, {what}" if self.label else what

    @property
    def published(self) -> bool:
        return self.speedups[0].point.source != OURS


@dataclass(frozen=True)
class Group:
    """The families that may stand in one chart: one task, one scale, one goal."""

    task: str
    scale: str
    goal: str | None
    families: tuple[Family, ...]

    @property
    def points(self) -> list[Point]:
        return [point for family in self.families for point in family.points]

    @property
    def records(self) -> list[Record]:
        return [record for point in self.points for record in point.records]

    @property
    def about(self) -> str:
        """What every chart's title says: task, scale, goal, hardware and how often a point was measured."""
        hardware = dict.fromkeys(point.hardware for point in self.points)
        repeats = sorted({point.n for point in self.points})
        n = f"{repeats[0]} to {repeats[-1]}" if len(repeats) > 1 else f"{repeats[0]}"
        goal = f", {self.goal}" if self.goal else ""
        return f"{self.task}, {self.scale}{goal}, hardware {', '.join(hardware)}, n = {n} a point"


def groups(records: Sequence[Record]) -> list[Group]:
    """Return the records by what may be compared at all; ours come before published ones."""
    found = points(records)
    compared = {id(one.point): one for one in speedups(found)}
    together: dict[tuple[str, str, str | None], list[list[Point]]] = {}
    for family in families(found):
        first = family[0]
        together.setdefault((first.task, first.scale, first.goal), []).append(family)
    return [
        Group(*place, families=_labelled(some, compared))
        for place, some in sorted(together.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def workers(point: Point) -> str:
    """Return the point's number of workers in words."""
    return counted(point.workers, "worker")


def of(part: int, whole: int) -> str:
    """Return how many runs of all, e.g. 1 of 3 runs."""
    return f"{part} of {counted(whole, 'run')}"


def reasons(family: Family, *, forbidden_only: bool = False) -> list[str]:
    """Return why points have no speed-up, one sentence a reason."""
    by_reason: dict[str, list[str]] = {}
    for one in family.speedups:
        why = one.point.forbidden if forbidden_only else one.why
        if why:
            by_reason.setdefault(why, []).append(str(one.point.workers))
    return [
        f"{family.prefix}k = {', '.join(counts)} has no speed-up: {why}." for why, counts in by_reason.items()
    ]


def _labelled(some: list[list[Point]], compared: dict[int, Speedup]) -> tuple[Family, ...]:
    """Return the families with labels of what differs among them, in fields that people know if those do."""
    ordered = sorted(some, key=lambda family: family[0].source != OURS)
    labels = [[str(getattr(family[0], name)) for name in _telling(ordered)] for family in ordered]
    if len(set(map(tuple, labels))) < len(labels):
        fields = [dict(family[0].series) for family in ordered]
        names = [name for name in sorted(set().union(*fields)) if len({one.get(name) for one in fields}) > 1]
        for label, one in zip(labels, fields, strict=True):
            label += [
                f"{name.removeprefix('task.')} {json.loads(one.get(name, 'null'))}" for name in names[:3]
            ]
    return tuple(
        Family(
            " ".join(filter(None, [*label, "published" if family[0].source != OURS else ""])),
            tuple(compared[id(point)] for point in family),
        )
        for label, family in zip(labels, ordered, strict=True)
    )


def _telling(some: list[list[Point]]) -> list[str]:
    return [name for name in LABELS if len({getattr(family[0], name) for family in some}) > 1]

"""Closed and open division as data: lists of fields and one comparison (RULES.md)."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel, ConfigDict

from mlbench.config.identity import flatten, listed

# The rule that a field falls under. The first pattern that fits (RULES.md has the texts).
RULES = (
    ("task.dataset", "R2"),
    ("task.metric", "R2"),
    ("task.goals.*", "R2"),
    ("task.*", "R1"),
    ("sync.*", "R3"),
    ("hardware.*", "R14"),
    ("*", "R4"),
)


class Division(BaseModel):
    """Which fields may differ from the task's reference.

    - free: without a word.
    - declared: listed in the result, which is then not official.
    - fixed: never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    free: tuple[str, ...]
    declared: tuple[str, ...]
    fixed: tuple[str, ...]


class Deviation(BaseModel):
    """One field that differs from the closed reference. `fixed` ones no division allows."""

    model_config = ConfigDict(frozen=True)

    field: str
    given: Any
    reference: Any
    rule: str
    fixed: bool
    declared: bool  # allowed in any division. The result lists it and is not official

    def __str__(self) -> str:
        return f"{self.field} is {self.given}, the reference is {self.reference} (rule {self.rule})"


def variant(name: str, deviations: Iterable[Deviation]) -> str:
    """Return the name of the custom file that chose a task, or the task's own."""
    return next((str(deviation.given) for deviation in deviations if deviation.field == "task"), name)


def task_title(name: str, deviations: Iterable[Deviation]) -> str:
    """Return a task's name, preceded by the custom file that chose it."""
    chosen = variant(name, deviations)
    return name if chosen == name else f"{chosen} (a variant of {name})"


def deviations(
    given: Mapping[str, Any], reference: Mapping[str, Any], division: Division
) -> tuple[Deviation, ...]:
    """Return the fields that are not free and differ, in the order of the configuration."""
    ours, theirs = flatten(given), flatten(reference)
    return tuple(
        Deviation(
            field=field,
            given=ours.get(field),
            reference=theirs.get(field),
            rule=next(rule for pattern, rule in RULES if fnmatchcase(field, pattern)),
            fixed=listed(field, division.fixed),
            declared=listed(field, division.declared),
        )
        for field in ours | theirs
        if ours.get(field) != theirs.get(field) and not listed(field, division.free)
    )

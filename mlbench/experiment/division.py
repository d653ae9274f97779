"""Closed and open division as data: two lists of fields and one comparison (RULES.md)."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol

# The rule that a field falls under; the first pattern that fits (RULES.md has the texts).
RULES = (
    ("task.dataset", "R2"),
    ("task.metric", "R2"),
    ("task.goals.*", "R2"),
    ("task.*", "R1"),
    ("sync.*", "R3"),
    ("*", "R4"),
)


class Lists(Protocol):
    """What `deviations` needs of a division."""

    @property
    def free(self) -> tuple[str, ...]: ...
    @property
    def fixed(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Deviation:
    """One field that differs from the closed reference; `fixed` ones no division allows."""

    field: str
    given: Any
    reference: Any
    rule: str
    fixed: bool

    def __str__(self) -> str:
        return f"{self.field} is {self.given}, the reference is {self.reference} (rule {self.rule})"


def deviations(given: dict[str, Any], reference: dict[str, Any], division: Lists) -> list[Deviation]:
    """Return the fields that are not free and differ, in the order of the configuration."""
    ours, theirs = flat(given), flat(reference)
    found = []
    for field in ours | theirs:
        if ours.get(field) == theirs.get(field) or _listed(field, division.free):
            continue
        rule = next(rule for pattern, rule in RULES if fnmatchcase(field, pattern))
        fixed = _listed(field, division.fixed)
        found.append(Deviation(field, ours.get(field), theirs.get(field), rule, fixed))
    return found


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under dotted names, e.g. {"task": {"rate": 1}} as {"task.rate": 1}."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[prefix + name] = value
    return result


def _listed(field: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(field, pattern) for pattern in patterns)

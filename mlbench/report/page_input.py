"""What a report says about a study beside its numbers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Planned:
    """One run that a study asked for; `why` says what became of it where no record does."""

    label: str  # e.g. "task=logreg workers=2"
    key: str
    seed: int
    why: str = ""


@dataclass(frozen=True)
class StudyText:
    """A study in words.

    - commands: command lines that make it again, in their order.
    - planned: all runs that were asked for, so that those without a result are told.
    - lost: a sentence for each attempt that has no record.
    - facts: what stands below the title before what the runs say.
    """

    title: str
    question: str
    commands: tuple[str, ...]
    planned: tuple[Planned, ...] = ()
    lost: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

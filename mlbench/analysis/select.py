"""Which runs: words as `task=resnet20`, `workers=1,2`, `key:01ab`, `study:NAME`, or a part of a run's name.

All words of a selection must hold; a comma separates values of which one must. Names are those of the command
line and of a resolved configuration (`task.batch_size`), and status, source, key, recipe and run.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mlbench.experiment import run_folders
from mlbench.experiment.errors import UserError, suggest
from mlbench.experiment.identity import flatten, role
from mlbench.experiment.record import Record


def select(
    records: Iterable[Record], words: Sequence[str], *, studies: Callable[[str], list[Record]]
) -> list[Record]:
    """Return the records that all words select, in their order.

    `studies` returns a study's records by its name. Raises UserError for a name that no record has.
    """
    selected = list(records)
    every = selected
    for word in words:
        selected = _apply_filter(selected, word, every, studies)
    return selected


def _apply_filter(
    records: list[Record], word: str, every: list[Record], studies: Callable[[str], list[Record]]
) -> list[Record]:
    name, equals, value = word.partition("=")
    if equals:
        if every and not any(name in fields(one) for one in every):
            known = sorted({field for one in every for field in fields(one)})
            raise UserError(f"{name} is unknown{suggest(name, known)}")
        wanted = value.split(",")
        return [one for one in records if name in fields(one) and _matches(fields(one)[name], wanted)]
    if word.startswith("key:"):
        return [one for one in records if one.key.startswith(word.removeprefix("key:"))]
    if word.startswith("study:"):
        members = {one.run_id for one in studies(word.removeprefix("study:"))}
        return [one for one in records if one.run_id in members]
    if not word.strip():
        raise UserError(f"{word!r} names no run", hint="give a part of a run's name, or name=value")
    names = set(run_folders.matching([one.run_id for one in records], word))
    return [one for one in records if one.run_id in names]


def fields(record: Record) -> dict[str, Any]:
    """Return what a record can be selected by: its configuration, flat, with groups by their names."""
    experiment = record.experiment.plain()
    named = {name: value for name, value in flatten(experiment).items() if role(name) != "location"}
    groups = {name: value for name, value in experiment.items() if isinstance(value, dict)}
    named |= {name: value["name"] for name, value in groups.items() if "name" in value}
    of_record = ("status", "source", "key", "seed", "official")
    named |= {name: getattr(record, name) for name in of_record}
    return named | {"run": record.run_id, "recipe": record.experiment.task.recipe}


def _matches(value: Any, wanted: Sequence[str]) -> bool:
    return any(_equal(value, text) for text in wanted)


def _equal(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return value == text
    try:
        return value == json.loads(text)
    except ValueError:
        return False

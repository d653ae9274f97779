"""Select runs by words as `task=resnet20`, `workers=1,2`, `key:01ab`, `study:NAME`, or a part of a name.

All words of a selection must hold, `last` after the others. A comma separates values of which one must. Names
are those of the command line and of a resolved configuration (`task.batch_size`), and status, source, key,
recipe and run. A variant of a task is found by its own name and by the task's.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mlbench.config.division import variant
from mlbench.config.errors import ResultError, suggest
from mlbench.config.identity import flatten, role
from mlbench.record import run_folders
from mlbench.record.record import Record

NAMES = {"task": ("task", "variant")}  # the fields of a run that a name selects by, if not its own alone


def select(
    runs: Sequence[str],
    filters: Sequence[str],
    *,
    fields: Callable[[str], Mapping[str, Any]],
    studies: Callable[[str], Iterable[str]],
) -> list[str]:
    """Return the names of the runs that all words select, in their order.

    `fields` returns a run's fields by its name, `studies` the runs of a study. Raises UserError for a word
    without a value, for a value given twice and for a field that no run has.
    """
    selected = list(runs)
    for word in sorted(filters, key=lambda word: word == "last"):
        name, equals, value = word.partition("=")
        if not equals:
            value = word.removeprefix("key:").removeprefix("study:")
        accepted = value.split(",")
        if not all(part.strip() for part in accepted):
            raise ResultError(f"{word!r} matches no run", hint="give a part of a run's name, or name=value")
        if len(set(accepted)) < len(accepted):
            raise ResultError(f"{word} repeats a value", hint="keep one of them")
        if equals:
            if runs and not any(name in fields(run) for run in runs):
                names = sorted({field for run in runs for field in fields(run)})
                hint = "mlbench run --cfg job prints the fields of a run"
                raise ResultError(f"{name} is unknown{suggest(name, names)}", hint=hint)
            selected = [run for run in selected if matches(fields(run), name, accepted)]
        elif word.startswith("key:"):
            selected = [run for run in selected if fields(run)["key"].startswith(value)]
        elif word.startswith("study:"):
            members = set(studies(value))
            selected = [run for run in selected if run in members]
        else:
            named = set(run_folders.matching(selected, word))
            selected = [run for run in selected if run in named]
    return selected


def fields(record: Record) -> dict[str, Any]:
    """Return the fields that select a record: its configuration, flat, with groups by their names."""
    experiment = record.experiment.plain()
    named = {name: value for name, value in flatten(experiment).items() if role(name) != "location"}
    groups = {name: value for name, value in experiment.items() if isinstance(value, dict)}
    named |= {name: value["name"] for name, value in groups.items() if "name" in value}
    named |= {name: getattr(record, name) for name in ("status", "key", "seed", "eligible")}
    named |= {"variant": variant(named["task"], record.deviations)}
    return named | {"source": record.origin, "run": record.run_id, "recipe": record.experiment.task.recipe}


def matches(fields: Mapping[str, Any], name: str, accepted: Sequence[str]) -> bool:
    """Return whether a run's field has one of these values."""
    values = [fields[field] for field in NAMES.get(name, (name,)) if field in fields]
    return any(_equal(value, text) for value in values for text in accepted)


def _equal(value: Any, text: str) -> bool:
    if isinstance(value, str):
        return value == text
    try:
        return value == json.loads(text.lower() if isinstance(value, bool) else text)
    except ValueError:
        return False

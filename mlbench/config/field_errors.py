"""What pydantic found wrong with a configuration, as one sentence a field."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from mlbench.config.errors import nearest, suggest
from mlbench.config.experiment import DATE

MESSAGES = {  # by the beginning of pydantic's name of an error
    "int": "not a whole number",
    "float": "not a number",
    "bool": "neither true nor false",
    "path": "not a path",
    "string_pattern": "only letters, digits, _, . and - are allowed, and the first is a letter or digit",
    "tuple": "not a list, e.g. [1,2]",
    "model": "a group of values: set its fields one by one",
}
WORDS = {"bool": ("true", "false")}  # what a member of a union allows, in the words of the command line


def sentences(
    problems: Iterable[tuple[str, ValidationError]],
    composed: Mapping[str, Any],
    choices: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return one sentence for each wrong field, and one for all fields that a group's file lacks.

    - problems: errors with the prefix of their fields, e.g. "task.". Those of a group come before "".
    - composed: the values by group. choices: the names that chose their files, where these are others.
    """
    by_path: dict[str, list[Any]] = {}
    prefixes = []
    for prefix, error in problems:
        for problem in error.errors():
            path = prefix + ".".join(str(part) for part in problem["loc"] if _is_field(part))
            if prefix or not path.startswith(tuple(prefixes)):  # else the group's Config has reported it
                by_path.setdefault(path, []).append(problem)
        prefixes += [prefix] if prefix else []
    missing: dict[str, list[str]] = {}
    for path, (problem, *_) in by_path.items():
        if problem["type"] == "missing":
            group, _, field = path.partition(".")
            missing.setdefault(group, []).append(field)
    files = {
        group: f"the file of {group}={choices.get(group) or values.get('name', '?')}"
        for group, values in composed.items()
        if isinstance(values, dict)
    }
    lacking = [f"{files.get(group, 'a run')} lacks {', '.join(fields)}" for group, fields in missing.items()]
    wrong = [_sentence(path, some, composed, files) for path, some in by_path.items()
             if some[0]["type"] != "missing"]  # fmt: skip
    return [*lacking, *wrong]


def _sentence(
    path: str, problems: Sequence[Any], composed: Mapping[str, Any], files: Mapping[str, str]
) -> str:
    value = problems[0]["input"]
    if problems[0]["type"] == "extra_forbidden":
        group, _, field = path.partition(".")
        if not field:
            return f"{path} is not a field of a run"
        near = nearest(field, [name for name in composed[group] if name != field])
        return f"{field} is not a field of {files[group]}{f': did you mean {near}?' if near else ''}"
    given = "null" if value is None else str(value)
    start = f"{path}: " if isinstance(value, dict | list) else f"{path}={given}: "
    literals = [problem for problem in problems if problem["type"] == "literal_error"]
    if not literals:
        return start + _message(problems[0])
    choices = [word.strip("'") for word in literals[0]["ctx"]["expected"].replace(" or ", ", ").split(", ")]
    others = [problem["type"] for problem in problems if problem["type"] != "literal_error"]
    choices += [word for kind, values in WORDS.items() for word in values if _any(others, kind)]
    if isinstance(value, int | float) and others:  # a number that the number of the union refuses
        return start + _message(next(problem for problem in problems if problem["type"] != "literal_error"))
    return f"{start}unknown{suggest(given, choices)}{', or a number' if _any(others, 'float') else ''}"


def _any(kinds: Iterable[str], beginning: str) -> bool:
    return any(kind.startswith(beginning) for kind in kinds)


def _message(problem: Any) -> str:
    """Return in plain words what pydantic found wrong with a value."""
    kind, message = problem["type"], problem["msg"].removeprefix("Value error, ")
    if kind == "string_pattern_mismatch" and problem["ctx"]["pattern"] == DATE:
        return "not a date, e.g. 2026-11-27"
    plain = message.replace("Input should be", "must be")
    return next((text for name, text in MESSAGES.items() if kind.startswith(name)), plain)


def _is_field(part: int | str) -> bool:
    # pydantic puts the names of a union's members into the path, e.g. goal -> literal[...]
    return not (isinstance(part, str) and (part.startswith("literal[") or part in ("float", "int", "bool")))

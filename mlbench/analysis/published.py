"""Published results of MLBench and of others, as facts to stand beside ours.

One CSV file a study lies in tables/, readable in a diff; what its rows have in common stands once in
published_studies.yaml. A column `name [unit]` holds values; every other column says what the row is about.
"""

import csv
import dataclasses
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, get_args

import yaml

GOAL_UNITS = {"resnet20": "%", "logreg": "%", "awdlstm": "perplexity", "gnmt": "BLEU", "transformer": "BLEU"}


@dataclass(frozen=True)
class Reference:
    """One published number; a field is None where the source does not say."""

    study: str  # a key of published_studies.yaml
    title: str
    publisher: str  # "mlbench" or "peer"
    metric: str
    value: float
    unit: str  # "1" for a count or a ratio
    source: str
    caveat: str
    chart: bool  # read off a chart, so good to 3 % at best
    task: str | None
    label: str | None  # what tells the row from others of its study
    goal: str | None
    workers: int | None  # training processes, one accelerator each where there are accelerators
    backend: str | None
    device: str | None
    dtype: str | None
    elements: int | None
    epoch: float | None
    hardware: str | None
    software: str | None
    date: str | None
    n: int | None  # runs behind the number


def load(
    task: str | None = None, *, publisher: str | None = None, study: str | None = None
) -> list[Reference]:
    """Return the published numbers, optionally of one task, publisher ("mlbench", "peer") or study only."""
    wanted = {"task": task, "publisher": publisher, "study": study}
    return [
        one
        for one in _all()
        if all(value is None or getattr(one, name) == value for name, value in wanted.items())
    ]


@cache
def _all() -> tuple[Reference, ...]:
    folder = files("mlbench.analysis")
    studies = yaml.safe_load(folder.joinpath("published_studies.yaml").read_text())
    found: list[Reference] = []
    for name, common in studies.items():
        text = folder.joinpath("tables", f"{name}.csv").read_text()
        for row in csv.DictReader(text.splitlines()):
            found += _references(name, common, row)
    return tuple(found)


def _references(study: str, common: dict[str, Any], row: dict[str, str]) -> list[Reference]:
    """Return one Reference for each value of a row; an empty cell is no value."""
    about = {name: None for name in _TYPES} | {"study": study, "chart": False}
    about |= {name: value for name, value in common.items() if value is not None}
    values = {}
    for column, cell in row.items():
        if not cell:
            continue
        name, bracket, unit = column.partition(" [")
        if bracket:
            values[name] = (float(cell), unit.rstrip("]"))
        else:
            about[name] = _TYPES[name](cell)
    for name, (value, unit) in values.items():
        if unit == "goal":  # each row's own: that of the task's goal
            values[name] = (value, GOAL_UNITS[str(about["task"])])
    return [
        Reference(**about | {"metric": name, "value": value, "unit": unit})  # pyright: ignore[reportArgumentType]
        for name, (value, unit) in values.items()
    ]


def _cell_types() -> dict[str, Any]:
    """Return how the cell of each column is read, from the fields of Reference."""
    types = {}
    for field in dataclasses.fields(Reference):
        kind = next(iter(get_args(field.type)), field.type)
        types[field.name] = (lambda cell: cell == "yes") if kind is bool else kind
    return types


_TYPES = _cell_types()

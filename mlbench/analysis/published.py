"""Read published results of MLBench and of others, for comparison with measured ones.

tables/ has one CSV file a study, and published_studies.yaml what the rows of a study have in common. A column
`name [unit]` holds values, and every other column describes the row. archives/ has every curve of the 57
result archives that MLBench published in 2020 and 2021 (tools/convert_published.py).
"""

import csv
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import yaml
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

FOLDER = Path(str(files("mlbench.analysis")))


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PublishedNumber:
    """One published number. A field is None if the source does not state it."""

    study: str  # a key of published_studies.yaml
    title: str
    publisher: str  # "mlbench" or "peer"
    metric: str
    value: float
    unit: str  # "1" for a count or a ratio
    source: str
    caveat: str
    chart: bool = False  # read off a chart, so good to 3 % at best
    task: str | None = None
    label: str | None = None  # what distinguishes the row from others of its study
    goal: str | None = None
    workers: int | None = None  # training processes, one accelerator each if there are accelerators
    backend: str | None = None
    device: str | None = None
    dtype: str | None = None
    elements: int | None = None
    epoch: float | None = None
    hardware: str | None = None
    software: str | None = None
    date: str | None = None
    n: int | None = None  # runs behind the number


@dataclass(frozen=True)
class ArchivedRun:
    """One archive of MLBench's results. It has neither hyper-parameters nor a seed.

    - path: inside the collection of archives, github.com/mlbench/mlbench-results, commit 2160872.
    - sha256: of the archive. Runs that were published twice share it.
    - sync: "all-reduce" after the backward pass, or "ddp".
    - goal_metric, goal_target, time_to_goal_s: None if the archive holds no result. The time is rank 0's
      inside batches.
    - caveats: how the numbers differ from their names.
    """

    path: str
    sha256: str
    task: str
    sync: str
    backend: str
    device: str
    workers: int
    hardware: str
    torch: str
    goal_metric: str | None
    goal_target: float | None
    time_to_goal_s: float | None
    caveats: tuple[str, ...]


class CurvePoint(NamedTuple):
    """One value that a worker logged, at a wall-clock time."""

    time: datetime
    value: float


def archived_runs(task: str | None = None) -> list[ArchivedRun]:
    """Return the archives that MLBench published, optionally of one task only."""
    rows = pq.read_table(FOLDER / "archives" / "runs.parquet").to_pylist()
    runs = [ArchivedRun(**row | {"caveats": tuple(row["caveats"])}) for row in rows]
    return [run for run in runs if task in (None, run.task)]


def curves(path: str) -> dict[tuple[str, int], list[CurvePoint]]:
    """Return every curve of an archive by the original's metric name and rank, in the order of time."""
    table = pq.read_table(FOLDER / "archives" / "curves.parquet", filters=[("path", "=", path)])
    points: dict[tuple[str, int], list[CurvePoint]] = {}
    for row in table.to_pylist():
        point = CurvePoint(row["time"], row["value"])
        points.setdefault((row["metric"], row["rank"]), []).append(point)
    return points


def load(
    task: str | None = None, *, publisher: str | None = None, study: str | None = None
) -> list[PublishedNumber]:
    """Return the published numbers, optionally of one task, publisher ("mlbench", "peer") or study only."""
    wanted = {"task": task, "publisher": publisher, "study": study}
    return [
        reference
        for reference in _all()
        if all(value is None or getattr(reference, name) == value for name, value in wanted.items())
    ]


@cache
def _all() -> tuple[PublishedNumber, ...]:
    studies = yaml.safe_load((FOLDER / "published_studies.yaml").read_text())
    references: list[PublishedNumber] = []
    for name, common in studies.items():
        text = (FOLDER / "tables" / f"{name}.csv").read_text()
        for row in csv.DictReader(text.splitlines()):
            references += _references(name, common, row)
    return tuple(references)


def _references(study: str, common: dict[str, Any], row: dict[str, str]) -> list[PublishedNumber]:
    """Return one number for each value of a row, whose cells pydantic reads. Empty cells are no values."""
    cells = [(*column.partition(" ["), cell) for column, cell in row.items() if cell]
    about: dict[str, Any] = {"study": study, **common}
    about |= {name: cell for name, bracket, _, cell in cells if not bracket}
    return [
        PublishedNumber(**about, metric=name, value=float(cell), unit=unit.rstrip("]"))
        for name, bracket, unit, cell in cells
        if bracket
    ]

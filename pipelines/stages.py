"""The stages that the flows have in common; each is a few calls of the library."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from local_flow import PLACE

from mlbench import (
    comparison,
    record,
    report,
    selection,
    signals,
    speedup,
    study,
    sweep,
    tasks,
    units,
)
from mlbench.sweep import Outcome, request


def planned(name: str) -> request.Request:
    """Return the study of conf/study, or the begun one, with this flow's folders."""
    return request.named(name, place=PLACE)


def prepare(name: str) -> None:
    """Make every data set that the study needs, or raise UserError for what cannot be measured."""
    sweep.prepare(planned(name))


def measure(name: str) -> list[str]:
    """Measure what the study lacks; return a sentence for every trial without a result.

    The step ends with the flow that runs it: a flow that was killed leaves no sweep behind.
    """
    os.environ[signals.PARENT] = str(os.getppid())
    signals.end_with_parent()
    outcome = sweep.measure(planned(name))
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome.unmeasured


def outcome(name: str, unmeasured: list[str]) -> Outcome:
    """Return what the study has measured so far."""
    return replace(sweep.measured(planned(name)), unmeasured=unmeasured)


def rows(name: str) -> list[dict[str, Any]]:
    """Return the study's aggregates, one row a point."""
    return report.rows(outcome(name, []).records)


def publish(name: str, unmeasured: list[str]) -> str:
    """Write the report and the parent run in MLflow; return the page's path."""
    found = outcome(name, unmeasured)
    sweep.publish(found)
    return str(found.folder / study.REPORT / "report.html")


def join_tables(name: str, task: str, *, files: str) -> list[str]:
    """Join the tables of a task's runs, as Parquet with the runs' ids and as the task's own figure."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = outcome(name, [])
    runs = [run for run in found.records if run.experiment["task"]["name"] == task]
    table = [{**row, "run_id": run.run_id} for run in runs for row in run.table]
    if not table:
        return []
    folder = found.folder / study.REPORT
    folder.mkdir(exist_ok=True)
    parquet, png = folder / f"{files}.parquet", folder / f"{files}.png"
    pq.write_table(pa.Table.from_pylist(table), parquet)
    drawer = tasks.report(task)
    assert drawer is not None
    drawer.figure(table).savefig(png)
    return [str(parquet), str(png)]


def soonest(name: str, fields: Sequence[str]) -> list[str]:
    """Return a line for each number of workers: the setting with the least median time to the goal."""
    best: dict[int, speedup.Point] = {}
    for point in speedup.points(outcome(name, []).records):
        if _time(point) < _time(best.get(point.workers)):
            best[point.workers] = point
    return [_setting(point, fields) for _, point in sorted(best.items())]


def _time(point: speedup.Point | None) -> float:
    return point.time_to_accuracy.value if point and point.time_to_accuracy else math.inf


def _setting(point: speedup.Point, fields: Sequence[str]) -> str:
    given = selection.fields(point.records[0])
    said = " ".join(f"{field}={given[field]}" for field in fields)
    return f"workers={point.workers}: {said}: {units.duration(_time(point))} to the goal"


def against(name: str, baseline: str, *, limit: float) -> tuple[list[str], list[str]]:
    """Return what a comparison with the baseline's runs says, and which points are shown to be slower."""
    if not baseline:
        return [], []
    before = [record.load(path) for path in sorted(Path(baseline).glob("*/record.json"))]
    compared = comparison.compare(before, outcome(name, []).records, limit=limit)
    said, slower = [], []
    for pair in compared.pairs:
        sentence = f"{pair.b.task} {units.counted(pair.b.workers, 'worker')}: {pair.verdict}: {pair.why}"
        (slower if pair.slower_than else said).append(sentence)
    return said, slower

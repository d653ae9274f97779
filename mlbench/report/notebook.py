"""Use runs in a notebook: `mlbench.load_runs` as a pandas table, the aggregates of its points, charts.

Select runs with pandas, e.g. `runs[runs.task == "resnet20"]`. The other functions take such a table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from mlbench.analysis import compare as comparison
from mlbench.analysis.points import Point
from mlbench.config import libraries
from mlbench.config.errors import ResultError, UserError, suggest
from mlbench.config.identity import flatten
from mlbench.record import fields, reader, run_folders, study
from mlbench.record.attempts import History
from mlbench.record.record import Record
from mlbench.report import aggregates, grouping, render
from mlbench.report import charts as drawings
from mlbench.report.answers import answer

if TYPE_CHECKING:
    import pandas as pd


Runs = Any  # a table of `load_runs`, records, or what has `records`


def load_runs(output_root: str | Path = "runs") -> "pd.DataFrame":
    """Return one row a finished run, oldest first, indexed by the run's name.

    Columns: the numbers and names of `mlbench.record.fields` in base units, e.g. task, workers,
    time_to_accuracy (s), phase_forward (s, mean over ranks), the task's settings as `task....`, and `folder`,
    the path of the run. Prints a sentence for each record that cannot be read. Raises UserError if there is
    no such folder.
    """
    import pandas as pd

    root = Path(output_root)
    if not root.is_dir():
        raise ResultError(f"{root.absolute()} does not exist", hint="load_runs(output_root)")
    records, complaints = run_folders.records(root)
    for sentence in complaints:
        print(sentence)
    rows = {record.run_id: _row(record, root / record.run_id) for record in records}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("run")


def summarize(runs: "pd.DataFrame") -> "pd.DataFrame":
    """Return one row a point, with medians and 95 % intervals (`_low`, `_high`), see docs/statistics.md."""
    import pandas as pd

    return pd.DataFrame(aggregates.rows(grouping.groups(_records(runs))))


def answers(runs: "pd.DataFrame") -> dict[str, str]:
    """Return the results for time, price and certainty, in sentences, by task, data and goal."""
    roots = {Path(folder).parent for folder in runs["folder"]}
    histories: dict[str, History] = {}
    for root in roots:
        for key, history in study.histories(root).items():
            histories[key] = histories.get(key, History()) | history
    groups = grouping.groups(_records(runs), histories=histories)
    return {group.title: " ".join(answer(group)) for group in groups}


def draw(runs: "pd.DataFrame", *names: str) -> "list[Picture]":
    """Return the charts of these names (all without names), of each task, scale, goal and data set.

    Names: speedup, time_to_accuracy, phases, communication, cost, convergence, and those of a task's report.
    Raises UserError for another name.
    """
    groups = grouping.groups(_records(runs))
    charts = [chart for group in groups for chart in drawings.charts(group)]
    choices = [*dict.fromkeys([*drawings.NAMES, *(chart.name for chart in charts)])]
    for name in names:
        if name not in choices:
            raise UserError(f"unknown chart {name!r}{suggest(name, choices)}")
    return [Picture(chart) for chart in charts if not names or chart.name in names]


def compare(a: "Runs", b: "Runs") -> "pd.DataFrame":
    """Return two selections side by side: medians, ratio B / A with interval, and the verdict.

    Args:
        a: the baseline: a table of `load_runs`, a study of `sweep`, or records of `run`.
        b: what is compared with it.

    Returns:
        A row a pair of points and quantity; times in s.

    Raises:
        UserError: the sides cannot be compared.
    """
    libraries.require("pandas", user="mlbench.compare()")
    import pandas as pd

    rows = []
    for pair in comparison.compare(_records(a), _records(b)).pairs:
        verdict = f"B is {pair.verdict}" if pair.verdict in ("faster", "slower") else pair.verdict
        rows += [
            {
                "task": pair.a.task,
                "A": _side(pair.a),
                "B": _side(pair.b),
                "measure": measure.name,
                "median A": measure.a,
                "median B": measure.b,
                "B / A": measure.ratio and measure.ratio.value,
                "low": measure.ratio and measure.ratio.low,
                "high": measure.ratio and measure.ratio.high,
                "verdict": verdict if measure.name == pair.primary_metric else "",  # it is about this one
            }
            for measure in pair.measures
        ]
    return pd.DataFrame(rows)


def _side(point: Point) -> str:
    network = f", emulated network {point.network}" if point.emulated else ""
    return f"{grouping.workers(point)}{network}, n = {point.n}"


@dataclass(frozen=True)
class Picture:
    """A chart that a notebook shows."""

    chart: alt.LayerChart

    def _repr_png_(self) -> bytes:
        return render.png([self.chart])


def _records(runs: "Runs") -> Sequence[Record]:
    if isinstance(runs, list | tuple):
        return runs
    if not hasattr(runs, "columns"):
        if not hasattr(runs, "records"):
            hint = "give mlbench.load_study(name), rows of load_runs() or a list of records"
            raise ResultError(f"{runs!r} is no selection of runs", hint=hint)
        return runs.records  # type: ignore[union-attr]  # of a study
    return [reader.load(Path(folder) / "record.json") for folder in runs["folder"]]


def _row(record: Record, folder: Path) -> dict[str, Any]:
    values = {name.replace("/", "_"): value for name, value in fields.flat(record, fields.FIELDS).items()}
    settings = flatten({"task": record.experiment.plain()["task"]})
    del values["run"], settings["task.name"]
    return values | settings | {"folder": str(folder)}

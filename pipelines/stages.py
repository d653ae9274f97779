"""The stages that the flows have in common; each is a few calls of the library."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from local_flow import PLACE, TERMINAL
from rich.console import Console

from mlbench.analysis import compare, select
from mlbench.analysis.points import Point, points
from mlbench.config.errors import UserError
from mlbench.launch import signals
from mlbench.record import attempts, format, record, run_folders, study
from mlbench.report import aggregates, grouping, render
from mlbench.studies import preview as previews
from mlbench.studies import session, spec
from mlbench.studies.session import StudyResult
from mlbench.studies.spec import SweepSpec
from mlbench.tasks import registry
from mlbench.terminal import sweep_view

ANSWER = "MLBENCH_ANSWER"  # environment variable: the file in which the last step leaves what it says


def planned(name: str) -> spec.SweepSpec:
    """Return the study of conf/study, or the begun one, with this flow's folders."""
    return spec.named(name, output_settings=PLACE)


def checked(study: str, baseline: str = "", limit: float | str = 0.0) -> SweepSpec:
    """Return what a flow measures; UserError for every mistake that would show in a later step."""
    sweeps = planned(study)
    session.extended_plan(sweeps, session.load_results(sweeps).study, spec.compose_points(sweeps))
    if baseline and not _baseline_runs(study, Path(baseline)):
        raise UserError(
            f"baseline={baseline} has no finished run", hint="give the output_root of an earlier night"
        )
    try:
        share = float(limit)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UserError(f"limit={limit} is not a share from 0 to 1", hint="write 0.05 for 5 %")
    return sweeps


def preview(of: SweepSpec) -> list[str]:
    """Return the plan of a study and an estimate of its time and money."""
    return previews.sweep(of)[0]


def configurations(of: SweepSpec) -> list[str]:
    """Return the resolved configurations of all points as YAML documents."""
    return list(previews.configurations(of))


def prepare(name: str) -> None:
    """Make every data set that the study needs, or raise UserError for what cannot be measured."""
    session.prepare(planned(name))


def measure(name: str) -> tuple[list[str], list[str]]:
    """Measure what the study lacks; return a sentence for every trial without a result, and the notes.

    The step ends with the flow that runs it: a flow that was killed leaves no sweep behind.
    """
    os.environ[signals.PARENT_PID] = str(os.getppid())
    signals.exit_with_parent()
    result = session.measure(planned(name), console=_console())
    if result.interrupted:
        raise KeyboardInterrupt
    return result.unmeasured, result.notes


def _console() -> Console | None:
    """Return the terminal on which the flow was started; None where it was started on none."""
    path = os.environ.pop(TERMINAL, "")  # the runs of the sweep show nothing there
    if not path:
        return None
    file = open(path, "w")  # noqa: SIM115  (it lives as long as the step)
    return Console(file=file, force_terminal=True, width=os.get_terminal_size(file.fileno()).columns)


def load_results(name: str, unmeasured: list[str]) -> StudyResult:
    """Return what the study has measured so far."""
    return replace(session.load_results(planned(name)), unmeasured=unmeasured)


def rows(name: str) -> list[dict[str, Any]]:
    """Return the study's aggregates, one row a point."""
    return aggregates.rows(grouping.groups(load_results(name, []).records))


def publish(name: str, unmeasured: list[str]) -> tuple[str, str, list[str]]:
    """Write the report and the parent run in MLflow; return the answer, the page's path and notes."""
    result = load_results(name, unmeasured)
    groups = session.compared(result)
    if result.records:
        session.publish(result, groups)
    return sweep_view.answer(groups), str(result.folder / study.REPORT / "report.html"), result.notes


def close(lines: Sequence[str]) -> None:
    """Say the last words of a flow: after Metaflow's own, or where nobody waits for them at once."""
    text = "".join(f"{line}\n" for line in lines if line)
    if ANSWER in os.environ:
        Path(os.environ[ANSWER]).write_text(text)
    else:
        print(text, end="")


def join_tables(name: str, task: str, *, files: str) -> list[str]:
    """Join the tables of a task's runs, as Parquet with the runs' ids and as the task's own figure."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    result = load_results(name, [])
    runs = [run for run in attempts.results(result.records) if run.experiment.task.name == task]
    table = [{**row, "run_id": run.run_id} for run in runs for row in run.table]
    if not table:
        return []
    folder = result.folder / study.REPORT
    folder.mkdir(exist_ok=True)
    parquet, png = folder / f"{files}.parquet", folder / f"{files}.png"
    pq.write_table(pa.Table.from_pylist(table), parquet)
    report = registry.report(task)
    assert report is not None
    render.save(report.charts({"": table}, about=name), png, columns=2)
    return [str(parquet), str(png)]


def fastest(name: str, fields: Sequence[str]) -> list[str]:
    """Return a line for each number of workers: the setting with the least median time to the goal."""
    tried: dict[int, list[Point]] = {}
    for point in points(load_results(name, []).records):
        tried.setdefault(point.workers, []).append(point)
    return [f"workers={workers}: {_fastest(group, fields)}" for workers, group in sorted(tried.items())]


def _fastest(group: Sequence[Point], fields: Sequence[str]) -> str:
    best = min(group, key=_time)
    if math.isinf(_time(best)):
        return f"none of the {len(group)} settings reached the goal in more than half of its runs"
    time = best.time_to_accuracy
    assert time is not None
    given = select.fields(best.records[0])
    setting = " ".join(f"{field}={'null' if given[field] is None else given[field]}" for field in fields)
    spread = "one run"
    if time.low is not None and time.high is not None:
        high = "never" if math.isinf(time.high) else format.duration(time.high)
        spread = f"{time.n} runs, 95 % interval {format.duration(time.low)} to {high}"
    shared = ", on CPUs that the workers share" if best.oversubscribed else ""
    return f"{setting}: {format.duration(time.value)} to the goal ({spread}{shared})"


def _time(point: Point) -> float:
    return point.time_to_accuracy.value if point.time_to_accuracy else math.inf


def compare_with_baseline(name: str, baseline: str, *, limit: float) -> tuple[list[str], list[str]]:
    """Return what a comparison with the baseline's runs says, and what of it fails the night.

    That is a point that is shown to be slower than `limit` allows, one that no longer reaches its goal, and
    one that the baseline has and the study has not: not measured, or its configuration or data changed.
    """
    if not baseline:
        return [], []
    try:
        compared = compare.compare(
            _baseline_runs(name, Path(baseline)), load_results(name, []).records, limit=limit
        )
    except UserError as error:
        return [], [f"not compared with {baseline}: {error}"]
    notes, regressions = [], []
    for pair in compared.pairs:
        sentence = f"{_point(pair.b)}: {pair.goal_regression or f'{pair.verdict}: {pair.why}'}"
        (regressions if pair.regression else notes).append(sentence)
    regressions += [
        f"{_point(point)}: in the baseline, but missing from this run" for point in compared.only_a
    ]
    notes += [f"{_point(point)}: new, not in the baseline" for point in compared.only_b]
    return notes, regressions


def _baseline_runs(name: str, baseline: Path) -> list[record.Record]:
    """Return the results of the baseline's study of this name; without one, all runs of the folder."""
    plan = study.load(study.folder(baseline, name))
    if plan is not None:
        return study.records(plan, baseline)
    return run_folders.records(baseline)[0]


def _point(point: Point) -> str:
    return f"{point.task} {format.counted(point.workers, 'worker')}"

"""What a study shows beyond its report: the fastest settings, strategies, joined tables, a baseline."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mlbench.analysis import compare, select
from mlbench.analysis.bootstrap import max_coverage
from mlbench.analysis.points import MedianEstimate, Point, estimate, points
from mlbench.config.errors import ResultError, UserError
from mlbench.record import attempts, format, run_folders, study
from mlbench.record.record import Record
from mlbench.tasks import registry

STRATEGY_COLUMNS = (
    *("task", "workers", "network", "sync", "reached"),
    *("sent a step", "steps to goal", "time to goal"),
)


def fastest(records: Sequence[Record], fields: Sequence[str]) -> list[str]:
    """Return a line for each number of workers: the setting with the least median time to the goal."""
    tried: dict[int, list[Point]] = {}
    for point in points(records):
        tried.setdefault(point.workers, []).append(point)
    return [f"workers={workers}: {_fastest(group, fields)}" for workers, group in sorted(tried.items())]


def _fastest(group: Sequence[Point], fields: Sequence[str]) -> str:
    best = min(group, key=_time)
    time = best.time_to_accuracy
    if time is None or math.isinf(time.value):
        return f"none of the {len(group)} settings reached the goal in more than half of its runs"
    given = select.fields(best.records[0])
    setting = " ".join(f"{field}={'null' if given[field] is None else given[field]}" for field in fields)
    spread = "one run"
    if time.low is not None and time.high is not None:
        high = "never" if math.isinf(time.high) else format.duration(time.high)
        level = f"{100 * max_coverage(time.n):.0f} % interval"
        spread = f"{time.n} runs, {level} {format.duration(time.low)} to {high}"
    shared = ", on CPUs that the workers share" if best.oversubscribed else ""
    return f"{setting}: {format.duration(time.value)} to the goal ({spread}{shared})"


def _time(point: Point) -> float:
    return point.time_to_accuracy.value if point.time_to_accuracy else math.inf


def strategies(records: Sequence[Record]) -> str:
    """Return a Markdown table, one row a point; a goal that half of the runs missed is never reached."""
    measured = points(records)
    networks = {name for point in measured for name, _ in point.series if name.startswith("network.")}
    labels = compare.strategy_labels(measured, but=networks)  # the network has a column of its own
    rows = sorted(map(_strategy, measured, labels), key=lambda row: row[:4])
    lines = [f"| {' | '.join(STRATEGY_COLUMNS)} |", f"|{'---|' * len(STRATEGY_COLUMNS)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _strategy(point: Point, label: str) -> tuple[str, ...]:
    steps = [run.steps if run.status == "goal_reached" else math.inf for run in point.records]
    return (
        point.task,
        str(point.workers),
        point.network,
        label,
        f"{point.reached} of {point.n}",
        _sent(point.records),
        _estimate(estimate(steps), lambda value: f"{value:,.0f}"),
        _estimate(point.time_to_accuracy, format.duration),
    )


def _sent(records: Iterable[Record]) -> str:
    sent = [run.bytes_sent_per_step.mean for run in records if run.bytes_sent_per_step is not None]
    return format.with_prefix(sum(sent) / len(sent), "B") if sent else "unknown"


def _estimate(value: MedianEstimate | None, shown: Callable[[float], str]) -> str:
    if value is None:
        return "no goal"
    if math.isinf(value.value):
        return "not reached"
    if value.low is None or value.high is None:
        return shown(value.value)
    high = "never" if math.isinf(value.high) else shown(value.high)
    return f"{shown(value.value)} ({shown(value.low)} to {high})"


def join_tables(records: Sequence[Record], task: str, path: Path, *, about: str) -> list[str]:
    """Join the tables of a task's runs, as Parquet with the runs' ids and as the task's own figure."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from mlbench.report import render  # Altair is for the figure alone

    runs = [run for run in attempts.results(records) if run.experiment.task.name == task]
    table = [{**row, "run_id": run.run_id} for run in runs for row in run.table]
    if not table:
        return []
    parquet, png = path.with_suffix(".parquet"), path.with_suffix(".png")
    pq.write_table(pa.Table.from_pylist(table), parquet)
    report = registry.report(task)
    assert report is not None
    render.save(report.charts({"": table}, about=about), png, columns=2)
    return [str(parquet), str(png)]


def compare_with(
    name: str, records: Sequence[Record], baseline: Path, *, limit: float
) -> tuple[list[str], list[str]]:
    """Return what a comparison with the baseline's runs shows, and what of it is a regression.

    That is a point that is shown to be slower than `limit` allows, one that no longer reaches its goal, and
    one that the baseline has and the study has not: not measured, or its configuration or data changed.
    """
    before = _baseline(name, baseline)
    if not before:
        raise ResultError(
            f"baseline={baseline} has no finished run", hint="give the output_root of an earlier night"
        )
    try:
        compared = compare.compare(before, records, limit=limit)
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


def _baseline(name: str, output_root: Path) -> list[Record]:
    """Return the results of the baseline's study of this name; without one, all runs of the folder."""
    plan = study.load(study.folder(output_root, name))
    return run_folders.records(output_root)[0] if plan is None else study.records(plan, output_root)


def _point(point: Point) -> str:
    return f"{point.task} {format.counted(point.workers, 'worker')}"

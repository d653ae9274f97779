"""The figures show what the record says."""

import re
from pathlib import Path

import altair as alt
import pytest
from drawings import axis, column, notes, series
from driven import EPOCH_S, Run
from syrupy.assertion import SnapshotAssertion

from mlbench.analysis import marks
from mlbench.record.record import Record, Validation
from mlbench.report import run_charts


def drawn(record: Record, name: str) -> alt.LayerChart:
    return next(chart for chart in run_charts.charts(record) if chart.name == name)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    run = Run(tmp_path_factory.mktemp("runs"))
    for value in (60.0, 75.0, 90.0):
        run.validate(value)
    return run.end("goal_reached")


def test_every_figure_is_a_png(record: Record, tmp_path: Path) -> None:
    paths = run_charts.draw(record, tmp_path)
    assert [path.name for path in paths] == ["validation.png", "training_loss.png", "phases.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_validation_curve_has_the_goal_and_the_time_at_which_it_was_met(
    record: Record, snapshot: SnapshotAssertion
) -> None:
    chart = drawn(record, "validation")
    curve, goal = series(chart).values()
    assert column(curve, "x") == [EPOCH_S, 2 * EPOCH_S, 3 * EPOCH_S]
    assert column(curve, "y") == [60.0, 75.0, 90.0]
    assert column(goal, "y") == [89.0, 89.0] and goal[0]["series"].startswith("goal: ")
    assert notes(chart) == snapshot
    assert axis(chart, "y")["title"] == "accuracy / %" and axis(chart, "x")["title"].endswith("/ s")


def test_the_bars_of_an_epoch_add_up_to_its_batches(record: Record) -> None:
    chart = drawn(record, "phases")
    total = sum(spread.mean for spread in record.phases.values())
    parts = series(chart)
    assert all(column(part, "x") == [1.0, 2.0, 3.0] for part in parts.values())
    heights = [sum(part[index]["y"] for part in parts.values()) for index in range(3)]
    assert heights == pytest.approx([total / 3] * 3)
    assert axis(chart, "x")["title"] == "epoch"
    assert {"data wait", "backward"} <= set(parts)


def test_many_epochs_are_added_up_to_bars_that_can_be_told_apart(record: Record) -> None:
    many = record.model_copy(update={"intervals": record.intervals * 41, "validations": []})
    chart = drawn(many, "phases")
    parts = series(chart).values()
    assert {len(part) for part in parts} == {31}  # 123 intervals, four a bar
    everything = sum(row["y"] for part in parts for row in part)
    assert everything == pytest.approx(41 * sum(spread.mean for spread in record.phases.values()))


def test_long_times_have_hours_on_their_axis() -> None:
    hours = marks.time_axis("time to accuracy", 70_000.0, (0, None))
    assert hours["title"] == "time to accuracy / h"
    labels = re.findall(r'== ([\d.]+) \? \["(\d+)"\]', hours["axis"]["labelExpr"])
    assert labels[:3] == [("0.0", "0"), ("18000.0", "5"), ("36000.0", "10")]
    assert marks.time_axis("time", 90.0, (0, None))["title"] == "time / s"


def test_nothing_is_drawn_of_what_was_not_measured(record: Record, tmp_path: Path) -> None:
    diverged = Validation(epoch=1.0, step=1, elapsed=1.0, wall=1.0, train_loss=None, metrics={})
    nothing = {"validations": [diverged], "intervals": [], "phases": {}, "time_to_accuracy": None}
    assert run_charts.draw(record.model_copy(update=nothing), tmp_path) == []
    assert list(tmp_path.iterdir()) == []

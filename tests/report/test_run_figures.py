"""The figures show what the record says."""

from pathlib import Path

import pytest
from driven import EPOCH_S, Run

from mlbench.analysis.chart import Chart, time_axis
from mlbench.record.format import duration
from mlbench.record.record import Record, Validation
from mlbench.report import run_figures


def drawn(record: Record, name: str) -> Chart:
    return next(chart for chart in run_figures.charts(record) if chart.name == name)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    run = Run(tmp_path_factory.mktemp("runs"))
    for value in (60.0, 75.0, 90.0):
        run.validate(value)
    return run.end("goal_reached")


def test_every_figure_is_a_png(record: Record, tmp_path: Path) -> None:
    paths = run_figures.draw(record, tmp_path)
    assert [path.name for path in paths] == ["validation.png", "training_loss.png", "phases.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_validation_curve_has_the_goal_and_the_time_at_which_it_was_met(record: Record) -> None:
    chart = drawn(record, "validation")
    curve, goal = chart.traces
    assert list(curve.x) == [EPOCH_S, 2 * EPOCH_S, 3 * EPOCH_S]
    assert list(curve.y) == [60.0, 75.0, 90.0]
    assert goal.kind == "reference_line" and set(goal.y) == {89.0}
    assert chart.notes == (f"The goal was reached after {duration(3 * EPOCH_S)}.",)
    assert chart.y.label == "accuracy / %" and chart.x.label.endswith("/ s")


def test_the_bars_of_an_epoch_add_up_to_its_batches(record: Record) -> None:
    chart = drawn(record, "phases")
    total = sum(spread.mean for spread in record.phases.values())
    assert [list(bars.x) for bars in chart.traces] == [[1.0, 2.0, 3.0]] * len(chart.traces)
    heights = [sum(bars.y[index] for bars in chart.traces) for index in range(3)]
    assert heights == pytest.approx([total / 3] * 3)
    assert chart.x.label == "epoch"
    assert {"data wait", "backward"} <= {bars.label for bars in chart.traces}


def test_many_epochs_are_added_up_to_bars_that_can_be_told_apart(record: Record) -> None:
    many = record.model_copy(update={"intervals": record.intervals * 41, "validations": []})
    chart = drawn(many, "phases")
    assert len(chart.traces[0].x) == 31  # 123 intervals, four a bar
    everything = sum(sum(bars.y) for bars in chart.traces)
    assert everything == pytest.approx(41 * sum(spread.mean for spread in record.phases.values()))


def test_long_times_have_hours_on_their_axis() -> None:
    axis = time_axis("time to accuracy", 70_000.0, (0, None))
    assert axis.label == "time to accuracy / h"
    assert axis.ticks[:3] == ((0.0, "0"), (18000.0, "5"), (36000.0, "10"))
    assert time_axis("time", 90.0, (0, None)).label == "time / s"


def test_nothing_is_drawn_of_what_was_not_measured(record: Record, tmp_path: Path) -> None:
    diverged = Validation(epoch=1.0, step=1, elapsed=1.0, wall=1.0, train_loss=None, metrics={})
    nothing = {"validations": [diverged], "intervals": [], "phases": {}, "time_to_accuracy": None}
    assert run_figures.draw(record.model_copy(update=nothing), tmp_path) == []
    assert list(tmp_path.iterdir()) == []

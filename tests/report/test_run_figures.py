"""The figures show what the record says; they are read back from matplotlib and as pixels."""

import struct
from pathlib import Path
from typing import Any

import pytest
from driven import EPOCH_S, Run
from matplotlib.figure import Figure

from mlbench.experiment.record import Record
from mlbench.report import run_figures

WIDE, HIGH = 768, 432  # pixels


def plotted(plot: Any, record: Record) -> Any:
    """Return the axes that a figure's plot function draws on."""
    axes = Figure().add_subplot()
    assert plot(axes, record)
    return axes


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    run = Run(tmp_path_factory.mktemp("runs"))
    for value in (60.0, 75.0, 90.0):
        run.validate(value)
    return run.end("goal_reached")


def test_every_figure_is_a_png_of_the_same_size(record: Record, tmp_path: Path) -> None:
    paths = run_figures.draw(record, tmp_path)
    assert [path.name for path in paths] == ["validation.png", "training_loss.png", "phases.png"]
    for path in paths:
        head = path.read_bytes()[:24]
        assert head.startswith(b"\x89PNG")
        assert struct.unpack(">II", head[16:]) == (WIDE, HIGH)


def test_the_validation_curve_has_the_goal_and_the_time_at_which_it_was_met(record: Record) -> None:
    axes = plotted(run_figures._validation, record)
    curve, goal, met = axes.get_lines()
    assert list(curve.get_xdata()) == [EPOCH_S, 2 * EPOCH_S, 3 * EPOCH_S]
    assert list(curve.get_ydata()) == [60.0, 75.0, 90.0]
    assert set(goal.get_ydata()) == {89.0}
    assert set(met.get_xdata()) == {3 * EPOCH_S}
    assert axes.get_ylabel() == "accuracy / %"
    assert axes.get_xlabel().endswith("/ s")


def test_the_bars_of_an_epoch_add_up_to_its_batches(record: Record) -> None:
    axes = plotted(run_figures._phases, record)
    heights: dict[float, float] = {}
    for bars in axes.containers:
        for bar in bars:
            middle = bar.get_x() + bar.get_width() / 2
            heights[middle] = heights.get(middle, 0.0) + bar.get_height()
    total = sum(spread.mean for spread in record.phases.values())
    assert sorted(heights) == pytest.approx([1.0, 2.0, 3.0])
    assert list(heights.values()) == pytest.approx([total / 3] * 3)
    assert axes.get_xlabel() == "epoch"
    names = {text.get_text() for text in axes.get_legend().get_texts()}
    assert {"communication (exposed)", "data wait", "backward"} <= names


def test_many_epochs_are_added_up_to_bars_that_can_be_told_apart(record: Record) -> None:
    many = record.model_copy(update={"segments": record.segments * 41, "validations": []})
    axes = plotted(run_figures._phases, many)
    assert len(axes.containers[0]) == 31  # 123 segments, four a bar
    everything = sum(bar.get_height() for bars in axes.containers for bar in bars)
    assert everything == pytest.approx(41 * sum(spread.mean for spread in record.phases.values()))


def test_nothing_is_drawn_of_what_was_not_measured(record: Record, tmp_path: Path) -> None:
    diverged = {"metrics": {}, "train_loss": None, "elapsed": 1.0, "epoch": 1.0}
    nothing = {"validations": [diverged], "segments": [], "phases": {}, "time_to_accuracy": None}
    assert run_figures.draw(record.model_copy(update=nothing), tmp_path) == []
    assert list(tmp_path.iterdir()) == []

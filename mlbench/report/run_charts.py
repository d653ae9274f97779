"""Draw the curves of one run: validation, training loss, and the time of its batches by phase."""

import math
from pathlib import Path

import altair as alt

from mlbench.analysis import marks
from mlbench.record.format import counted, duration
from mlbench.record.phases import PHASES, TRAIN_STEP
from mlbench.record.record import Record
from mlbench.report import render
from mlbench.report.charts.phases import stacked

ELAPSED = marks.axis("time since the first access to data / s", limits=(0, None))
MOST_BARS = 40  # bars that can be distinguished, with neighbours added up if there are more segments
BAR = 0.8  # width of a bar, of the distance between two


def draw(record: Record, folder: Path) -> list[Path]:
    """Write the charts that the record has numbers for as PNG, and return their paths."""
    paths = []
    for chart in charts(record):
        if chart.layer:
            paths.append(folder / f"{chart.name}.png")
            render.save([chart], paths[-1])
    return paths


def charts(record: Record) -> list[alt.LayerChart]:
    """Return the charts of a run."""
    experiment = record.experiment
    about = (
        f"{experiment.task.name}, {experiment.scale}, {counted(record.workers, 'worker')}, "
        f"{experiment.backend.name}, seed {record.seed}: {record.status.replace('_', ' ')}"
    )
    return [_validation(record, about), _training_loss(record, about), _phases(record, about)]


def _validation(record: Record, about: str) -> alt.LayerChart:
    task = record.experiment.task
    rows = [
        _row("validation", validation.elapsed, value)
        for validation in record.validations
        if (value := validation.metrics.get(task.metric)) is not None and math.isfinite(value)
    ]
    looks, goal = {"validation": marks.look(0)}, []
    if rows and record.goal is not None:
        looks[series := f"goal: {record.goal}"] = marks.REFERENCE
        goal = [{"series": series, "x": x, "y": record.goal.target} for x in (0, rows[-1]["x"])]
    notes = []
    if record.time_to_accuracy is not None:
        notes = [f"The goal was reached after {duration(record.time_to_accuracy)}."]
    unit = f" / {task.metric_unit}" if task.metric_unit else ""
    return marks.chart(
        "validation",
        "Validation",
        [*marks.line(rows, small=True), *marks.plain_line(goal)],
        looks=looks,
        x=ELAPSED,
        y=marks.axis(f"{task.metric.replace('_', ' ')}{unit}"),
        about=about,
        notes=notes,
    )


def _training_loss(record: Record, about: str) -> alt.LayerChart:
    title = "Training loss"  # also of its only series, which needs no legend then
    rows = [
        _row(title, validation.elapsed, validation.train_loss)
        for validation in record.validations
        if validation.train_loss is not None
    ]
    layers, y = marks.line(rows, small=True), marks.axis("mean training loss")
    looks = {title: marks.look(0)}
    return marks.chart("training_loss", title, layers, looks=looks, x=ELAPSED, y=y, about=about)


def _row(series: str, elapsed: float, value: float) -> marks.Row:
    return {"series": series, "x": elapsed, "y": value, "text": f"{duration(elapsed)}: {value:g}"}


def _phases(record: Record, about: str) -> alt.LayerChart:
    intervals = record.intervals if record.phases else []
    together = max(1, -(-len(intervals) // MOST_BARS))
    starts = range(0, len(intervals), together)
    places = [float(number) for number in range(1, len(starts) + 1)]
    parts: dict[str, list[float]] = {}
    for phase in (*PHASES, TRAIN_STEP) if TRAIN_STEP in record.phases else PHASES:
        means = [interval.phases[phase].mean if phase in interval.phases else 0.0 for interval in intervals]
        parts[phase.replace("_", " ")] = [sum(means[start : start + together]) for start in starts]
    rows, _ = stacked(parts, places, width=BAR)
    epochs = all(validation.epoch == count for count, validation in enumerate(record.validations, start=1))
    unit = "epoch" if epochs else "interval between validations"
    step = max(1, len(places) // 10)
    x = marks.axis(
        unit if together == 1 else f"{unit} / {together}",
        ticks=[(position, f"{position:.0f}") for position in places[step - 1 :: step]],
        limits=(0, len(places) + 1),
    )
    return marks.chart(
        "phases",
        "Where the time of the batches went",
        marks.bars(rows),
        looks={label: marks.tint(style) for style, label in enumerate(parts)},
        x=x,
        y=marks.axis("time in batches, mean over ranks / s", limits=(0, None)),
        about=about,
    )

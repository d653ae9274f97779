"""The curves of one run as pictures: validation, training loss, and where the time of its batches went."""

import math
from pathlib import Path

from mlbench.analysis.chart import Axis, Chart, Trace
from mlbench.record.format import counted, duration
from mlbench.record.phases import PHASES, TRAIN_STEP
from mlbench.record.record import Record
from mlbench.report import render
from mlbench.report.charts.phases import stacked

ELAPSED = Axis("time since the first access to data / s", limits=(0, None))
MOST_BARS = 40  # bars that can be told apart; of more segments neighbours are added up
BAR = 0.8  # width of a bar, of the distance between two


def draw(record: Record, folder: Path) -> list[Path]:
    """Write the charts that the record has numbers for as PNG; return their paths."""
    paths = []
    for chart in charts(record):
        if not chart.empty:
            paths.append(folder / f"{chart.name}.png")
            render.save([chart], paths[-1])
    return paths


def charts(record: Record) -> list[Chart]:
    """Return the charts of a run."""
    experiment = record.experiment
    about = (
        f"{experiment.task.name}, {experiment.scale}, {counted(record.workers, 'worker')}, "
        f"{experiment.backend.name}, seed {record.seed}: {record.status.replace('_', ' ')}"
    )
    return [_validation(record, about), _training_loss(record, about), _phases(record, about)]


def _validation(record: Record, about: str) -> Chart:
    task = record.experiment.task
    curve = [
        (validation.elapsed, value)
        for validation in record.validations
        if (value := validation.metrics.get(task.metric)) is not None and math.isfinite(value)
    ]
    traces = [_line("validation", curve)] if curve else []
    if curve and record.goal is not None:
        target = record.goal.target
        traces.append(Trace(f"goal: {record.goal}", [0, curve[-1][0]], [target, target], "reference_line"))
    notes = []
    if record.time_to_accuracy is not None:
        notes = [f"The goal was reached after {duration(record.time_to_accuracy)}."]
    unit = f" / {task.metric_unit}" if task.metric_unit else ""
    y = Axis(f"{task.metric.replace('_', ' ')}{unit}")
    return Chart.of("validation", "Validation", about=about, x=ELAPSED, y=y, traces=traces, notes=notes)


def _training_loss(record: Record, about: str) -> Chart:
    curve = [
        (validation.elapsed, validation.train_loss)
        for validation in record.validations
        if validation.train_loss is not None
    ]
    return Chart.of(
        "training_loss",
        "Training loss",
        about=about,
        x=ELAPSED,
        y=Axis("mean training loss"),
        traces=[_line("", curve)],
    )


def _line(label: str, curve: list[tuple[float, float]]) -> Trace:
    xs, ys = [x for x, _ in curve], [y for _, y in curve]
    return Trace(label, xs, ys, small=True, texts=[f"{duration(x)}: {y:g}" for x, y in curve])


def _phases(record: Record, about: str) -> Chart:
    intervals = record.intervals if record.phases else []
    together = max(1, -(-len(intervals) // MOST_BARS))
    starts = range(0, len(intervals), together)
    places = [float(number) for number in range(1, len(starts) + 1)]
    parts = []
    names = (*PHASES, TRAIN_STEP) if TRAIN_STEP in record.phases else PHASES
    for style, phase in enumerate(names):
        means = [interval.phases[phase].mean if phase in interval.phases else 0.0 for interval in intervals]
        seconds = [sum(means[start : start + together]) for start in starts]
        parts.append((phase.replace("_", " "), style, seconds))
    traces, _ = stacked(parts, places, width=BAR)
    epochs = all(validation.epoch == count for count, validation in enumerate(record.validations, start=1))
    unit = "epoch" if epochs else "interval between validations"
    step = max(1, len(places) // 10)
    return Chart.of(
        "phases",
        "Where the time of the batches went",
        about=about,
        x=Axis(
            unit if together == 1 else f"{unit} / {together}",
            ticks=tuple((position, f"{position:.0f}") for position in places[step - 1 :: step]),
            limits=(0, len(places) + 1),
        ),
        y=Axis("time in batches, mean over ranks / s", limits=(0, None)),
        traces=traces,
    )

"""A run's course as small figures: validation, training loss, and where the batches' time went.

Lines differ in dash and bars in hatching as well as in colour, so that they can be told apart in grey.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbench.experiment.format import counted
from mlbench.experiment.phases import PHASES
from mlbench.experiment.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = (6.4, 3.6)  # at DOTS_PER_INCH: 768 x 432 pixels
DOTS_PER_INCH = 120
# Okabe and Ito 2008, "Color universal design": told apart with every kind of colour vision.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#999999")
HATCHES = ("", "//", "", "\\\\", "xx", "", "..")
ELAPSED = "time since the first touch of data / s"
MOST_BARS = 40  # bars that can be told apart; of more segments neighbours are added up


def draw(record: Record, folder: Path) -> list[Path]:
    """Write the figures that the record has numbers for as PNG; return their paths."""
    figures = {
        "validation.png": _validation,
        "training_loss.png": _training_loss,
        "phases.png": _phases,
    }
    return [folder / name for name, plot in figures.items() if _figure(record, plot, folder / name)]


def _figure(record: Record, plot: Any, path: Path) -> bool:
    """Draw one figure; return whether there was anything to draw."""
    # Imported here: matplotlib takes longer to import than all of mlbench.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if not plot(axes, record):
        return False
    experiment = record.experiment
    axes.set_title(
        f"{experiment['task']['name']}, {experiment['scale']}, {counted(record.workers, 'worker')}, "
        f"{experiment['backend']['name']}, seed {record.seed}: {record.status.replace('_', ' ')}",
        fontsize="medium",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    return True


def _validation(axes: "Axes", record: Record) -> bool:
    task = record.experiment["task"]
    points = [
        (v["elapsed"], v["metrics"][task["metric"]])
        for v in record.validations
        if v["metrics"].get(task["metric"]) is not None
    ]
    if not points:
        return False
    axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=COLOURS[3], label="validation")
    if record.goal is not None:
        target = float(record.goal.split()[-1])
        axes.axhline(target, linestyle="--", color=COLOURS[4], label=f"goal {record.goal}")
    if record.time_to_accuracy is not None:
        after = f"reached after {record.time_to_accuracy:.1f} s"
        axes.axvline(record.time_to_accuracy, linestyle=":", color="black", label=after)
    unit = f" / {task['metric_unit']}" if task["metric_unit"] else ""
    axes.set(xlabel=ELAPSED, ylabel=f"{task['metric']}{unit}", xlim=(0, None))
    axes.legend(frameon=False)
    return True


def _training_loss(axes: "Axes", record: Record) -> bool:
    points = [(v["elapsed"], v["train_loss"]) for v in record.validations if v["train_loss"] is not None]
    if not points:
        return False
    axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=COLOURS[3])
    axes.set(xlabel=ELAPSED, ylabel="mean training loss", xlim=(0, None))
    return True


def _phases(axes: "Axes", record: Record) -> bool:
    if not record.phases or not record.segments:
        return False
    from matplotlib.ticker import MaxNLocator

    together = -(-len(record.segments) // MOST_BARS)
    starts = range(0, len(record.segments), together)
    bottoms = [0.0] * len(starts)
    for phase, colour, hatch in zip(PHASES, COLOURS, HATCHES, strict=True):
        seconds = [
            sum(segment["phases"][phase]["mean"] for segment in record.segments[start : start + together])
            for start in starts
        ]
        name = "communication (exposed)" if phase == "communication" else phase.replace("_", " ")
        axes.bar(
            [start / together + 1 for start in starts],
            seconds,
            bottom=bottoms,
            label=name,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
        )
        bottoms = [bottom + more for bottom, more in zip(bottoms, seconds, strict=True)]
    epochs = all(v["epoch"] == count for count, v in enumerate(record.validations, start=1))
    one = "epoch" if epochs else "interval between validations"
    axes.set(xlabel=one if together == 1 else f"{one} / {together}")
    axes.set_ylabel("time in batches, mean over ranks / s")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    return True

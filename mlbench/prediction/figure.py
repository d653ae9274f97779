"""The predicted time to accuracy over workers, its 95 % band, and the measured runs."""

from collections.abc import Sequence
from pathlib import Path

from mlbench.experiment import format
from mlbench.experiment.errors import UserError
from mlbench.prediction.forecast import Forecast
from mlbench.prediction.runs import Measurements

SIZE = (7.0, 4.5)  # inches
DOTS = 150  # an inch
TICKS_S = (
    1e-3,
    1e-2,
    0.1,
    1,
    10,
    60,
    600,
    3600,
    36_000,
    86_400,
    864_000,
    8_640_000,
)  # s; what people count in


def draw(
    path: Path, found: Sequence[Forecast], *, fitted: Measurements, held_out: Measurements | None
) -> None:
    """Write the figure; fitted runs are filled, those that the model has not seen are hollow."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    workers = [one.workers for one in found]
    axes.plot(workers, [one.time_s.value for one in found], color="black", label="predicted")
    low, high = ([getattr(one.time_s, end) for one in found] for end in ("low", "high"))
    if None not in low:
        axes.fill_between(workers, low, high, color="0.85", label="95 % of further runs")
    for runs, filled, label in ((fitted, True, "measured"), (held_out, False, "measured, not fitted")):
        points = [(run.workers, run.total_s) for run in runs.runs if run.reached] if runs else []
        if points:
            axes.scatter(*zip(*points, strict=True), marker="o", edgecolor="black",
                         facecolor="black" if filled else "white", label=label, zorder=3)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(workers, [f"{k:,}" for k in workers])
    bottom, top = axes.get_ylim()
    ticks = [seconds for seconds in TICKS_S if bottom <= seconds <= top]
    axes.set_yticks(ticks, [format.duration(seconds) for seconds in ticks])
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("workers")
    axes.set_ylabel("time to accuracy")
    axes.set_title(f"{fitted.task}, fitted at {', '.join(map(str, fitted.counts))} workers")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, format="png", dpi=DOTS)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", hint="give another plot=PATH") from error

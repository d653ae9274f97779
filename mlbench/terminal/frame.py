"""One frame of the live screen, and the phrases that it shares with the plain lines."""

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mlbench.experiment import format
from mlbench.terminal.run_state import TRAINING, Course

BARS = "▁▂▃▄▅▆▇█"
BARS_SHOWN = 24  # latest validations


def screen(course: Course) -> Group:
    """Return one frame of the live screen."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, min_width=10)  # as wide as "validation"
    rows.add_column(ratio=1)
    rows.add_row("now", Text(course.doing, style="bold"))
    if course.epochs is not None:
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_row(position(course), ProgressBar(total=course.epochs, completed=course.epoch))
        rows.add_row("progress", line)
    if course.update:
        rows.add_row("speed", Text(", ".join(pace(course))))
    if course.values:
        rows.add_row("validation", Text(f"{validated(course)}  {sparkline(course)}"))
    elif goal := course.experiment.target:
        task = course.experiment.task
        rows.add_row("goal", Text(f"{goal.metric} {format.asked(goal, task.metric_unit)}"))
    times = [f"{format.whole(course.elapsed)} since the command"]
    if course.trained is not None:
        times.append(f"{format.whole(course.trained)} since the first touch of data")
    rows.add_row("time", Text(", ".join(times)))
    for estimate in left(course):
        rows.add_row("left", Text(estimate))
    for warning in course.warnings[-3:]:
        rows.add_row(Text("warning", style="bold yellow"), Text(warning, style="yellow"))
    return Group(Text(headline(course), style="bold cyan"), rows)


def headline(course: Course) -> str:
    """Return what is run, in one line."""
    experiment = course.experiment
    threads = f" x {format.counted(course.threads, 'thread')}" if course.threads else ""
    return (
        f"{experiment.task.name} scale={experiment.scale} division={experiment.division.name} "
        f"workers={experiment.workers}{threads} backend={experiment.backend.name} "
        f"hardware={experiment.hardware.name} cluster={experiment.cluster.name} seed={course.seed}"
    )


def position(course: Course) -> str:
    """Return how many epochs are done, e.g. epoch 3.4 of 20."""
    return f"epoch {course.epoch:.1f}" + (f" of {course.epochs}" if course.epochs else "")


def pace(course: Course) -> list[str]:
    """Return loss and rates, as far as they are known."""
    parts = []
    if course.loss is not None:
        parts.append(f"loss {course.loss:.4g}")
    if course.updates_per_s is not None:
        parts.append(f"{format.number(course.updates_per_s)} updates/s")
    if course.samples_per_s is not None:
        workers = format.counted(course.experiment.workers, "worker")
        parts.append(f"{format.number(course.samples_per_s)} samples/s on {workers}")
    return parts


def validated(course: Course) -> str:
    """Return the last validation against the goal."""
    task, goal = course.experiment.task, course.experiment.target
    value = course.values[-1][1]
    text = f"{task.metric} {format.measured(value, task.metric_unit, goal)}"
    if goal is None:
        return text
    return f"{text}, goal {format.asked(goal, task.metric_unit)}{' reached' if goal.reached(value) else ''}"


def left(course: Course) -> list[str]:
    """Return the estimate of the time to the last epoch, if there is one; never one to the goal."""
    if course.remaining is None or course.doing != TRAINING:
        return []
    about = f"about {format.whole(course.remaining)} to the last epoch"
    if not course.remaining_counts_validation:
        return [f"{about}, validations not counted yet"]
    return [f"at most {about}" if course.experiment.target else about]


def sparkline(course: Course) -> str:
    """Return the validations so far as bars; a full bar is the goal, or the best where it is beyond."""
    values = [value for _, value in course.values]
    goal = course.experiment.target
    sign = 1 if course.experiment.task.direction == "max" else -1
    heights = [sign * value for value in values]
    low = min(heights)
    high = max([*heights, sign * goal.target] if goal else heights)
    top = len(BARS) - 1
    return "".join(
        BARS[int(top * (height - low) / (high - low)) if high > low else top]
        for height in heights[-BARS_SHOWN:]
    )

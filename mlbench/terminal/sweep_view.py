"""Show a sweep: a table of its points on a terminal, a line per run anywhere else."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mlbench import clock
from mlbench.analysis import bootstrap
from mlbench.analysis.points import time_to_goal
from mlbench.record import format
from mlbench.record.record import FINISHED, Record
from mlbench.terminal import tables
from mlbench.terminal.live_view import View, never_raises
from mlbench.terminal.result_card import WIDTH, wrapped

if TYPE_CHECKING:
    from mlbench.report import grouping

ANSWERS: dict[str, str] = dict.fromkeys(("curve", "workers", "goal reached"), "")
ANSWERS |= dict.fromkeys(("time to accuracy", "speed-up"), " (interval)")
ROOM = 8  # lines of a terminal that are left to other things than points
FEWEST = 4  # points that even a small terminal shows
QUIET_S = 30  # s of a run between two plain lines that show that it is alive


@dataclass
class PointProgress:
    """One point of the sweep: its overrides, how many runs it needs, and the finished ones."""

    label: str
    runs: int
    records: list[Record] = field(default_factory=list)

    @property
    def times(self) -> list[float]:
        """Seconds to the goal. A run that missed it counts as infinite."""
        return [time_to_goal(record) for record in self.records if record.goal is not None]

    @property
    def median_time(self) -> str:
        """The median time to the goal as text."""
        if not self.times:
            return "-"
        return format.duration(median(self.times)) if math.isfinite(median(self.times)) else "missed"

    def interval(self) -> str:
        """Return the interval of the median as text, "" for fewer than two runs (docs/statistics.md)."""
        ends = bootstrap.interval(self.times) if len(self.times) > 1 else None
        if ends is None or math.isinf(ends.low):
            return ""
        high = "missed" if math.isinf(ends.high) else format.duration(ends.high)
        return f"{format.duration(ends.low)} to {high}"

    @property
    def comparable(self) -> bool:
        """Whether the report may take a speed-up: noise leaves out a run there, other caveats its point."""
        doubts = (run.oversubscribed or set(run.caveats) - set(run.disturbances) for run in self.records)
        return bool(self.times) and not any(doubts)

    @cached_property
    def overrides(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.label))

    def speedup(self, points: "Sequence[PointProgress]") -> str:
        """Return the median of the point that differs in having one worker over this one's.

        "" without such a point, and if the report takes no speed-up (Point.exclusion_reason).
        """
        others = {word for word in self.overrides if not word.startswith("workers=")}
        for base in points:
            alike = {word for word in base.overrides if not word.startswith("workers=")} == others
            if alike and "workers=1" in base.overrides and base.comparable and self.comparable:
                quotient = median(base.times) / median(self.times)
                return f"{quotient:.2f}" if math.isfinite(quotient) and quotient else ""
        return ""


@dataclass
class RunInProgress:
    """A run of the sweep: its point's overrides and the seed, when it began, and how far it is.

    - shown: when a line last showed that it is alive. epoch: the present one, and how many it has at most.
    """

    overrides: str
    begin: float
    shown: float
    epoch: tuple[float, float] | None = None
    waits: bool = False  # for another run on this machine

    def progress(self, now: float) -> str:
        """Return how far it is, and for how long it has run."""
        seconds = format.whole(now - self.begin)
        if self.epoch and self.epoch[1]:
            return f"epoch {self.epoch[0]:.1f} of {self.epoch[1]:g}, {seconds}"
        return f"waiting for another run, {seconds}" if self.waits else f"running, {seconds}"


class SweepView(View):
    """Counter and view of the runs of a sweep.

    - spent: USD so far, or None if nothing has a price.
    - left: s for the runs that have not begun, if known. run_s: s for the one in progress.
    """

    def __init__(
        self,
        points: Sequence[PointProgress],
        *,
        console: Console | None = None,
        now: Callable[[], float] = clock.wall,
    ) -> None:
        super().__init__(console)
        self.points = list(points)
        self.total = sum(point.runs for point in points)
        self.done = sum(len(point.records) for point in points)
        self.failed = 0
        self.left: float | None = None
        self.run_s = 0.0
        self.spent: float | None = None
        self._now = now
        self._begin = now()
        self._run: RunInProgress | None = None
        self._rows: dict[str, list[str]] = {}  # cells by label, until another run has ended
        common = self.points[0].overrides if len(self.points) > 1 else ()
        self._common = [word for word in common if all(word in point.overrides for point in self.points)]

    def elapsed(self) -> float:
        return self._now() - self._begin

    @never_raises
    def say(self, text: str) -> None:
        """Print a line."""
        self.line(text)

    @never_raises
    def planned(self, overrides: str) -> None:
        """Count one more run of the point with these overrides."""
        self.total += 1
        for point in self.points:
            point.runs += point.label == overrides

    @never_raises
    def started(self, overrides: str) -> None:
        """Show which run is in progress. `overrides` are the point's overrides and the seed."""
        now = self._now()
        self._run = RunInProgress(overrides, begin=now, shown=now)
        self.line(f"{self.done + self.failed + 1}/{self.total} {overrides}")

    @never_raises
    def waiting(self, waits: bool) -> None:
        """Show that the run in progress waits for another run on this machine, or no longer does."""
        if self._run:
            self._run.waits, self._run.begin = waits, self._now()
        if waits:
            self.line("    waiting for another run that measures on this machine")

    @never_raises
    def advanced(self, epoch: float, epochs: float) -> None:
        """Show how far the run in progress is."""
        if self._run:
            self._run.epoch = epoch, epochs

    @never_raises
    def ended(self, overrides: str, record: Record | None, error: str | None, status: str = "failed") -> None:
        """Show how a run ended, and what is left of the sweep."""
        self._run = None
        if record is not None and record.status in FINISHED:
            self.done += 1
            self._rows.clear()
            for point in self.points:
                if point.label == _point(overrides):
                    point.records.append(record)
        self.failed += (record.status if record else status) == "failed"
        self.line(f"    {outcome(record, error, status)}")
        if not self.live:
            self.line(f"    {self.standing()}")

    def quiet(self) -> None:
        if self._run and self._now() - self._run.shown >= QUIET_S:
            self._run.shown = self._now()
            self.line(f"    {self._run.progress(self._now())}; {self.standing()}")

    def screen(self) -> Group:
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("point", "done", "median", "interval", "speed-up"):
            grid.add_column(heading, overflow="ellipsis", no_wrap=True)
        room = max(FEWEST, self.console.height - ROOM)
        running = _point(self._run.overrides) if self._run else ""
        at = next((i for i, point in enumerate(self.points) if point.label == running), 0)
        first = max(0, min(at - room // 2, len(self.points) - room))
        for point in self.points[first : first + room]:
            style = "bold" if point.label == running else ""
            label = shlex.join(word for word in point.overrides if word not in self._common) or point.label
            done = f"{len(point.records)}/{point.runs}"
            grid.add_row(label, done, *self._cells(point), style=style)
        hidden = len(self.points) - min(room, len(self.points))
        lines = [Text(f"every point: {shlex.join(self._common)}", style="dim")] if self._common else []
        more = [Text(f"and {format.counted(hidden, 'more point')}", style="dim")] if hidden else []
        return Group(*lines, grid, *more, *self._now_running(), Text(self.standing(), style="bold"))

    def _cells(self, point: PointProgress) -> list[str]:
        """Return median, interval and speed-up, computed again only if a run has ended."""
        if point.label not in self._rows:
            self._rows[point.label] = [point.median_time, point.interval(), point.speedup(self.points)]
        return self._rows[point.label]

    def _now_running(self) -> list[Table]:
        """Return the line of the run in progress: its point and seed, a bar over its epochs, its time."""
        if not self._run:
            return []
        words = shlex.split(self._run.overrides)
        overrides = shlex.join(word for word in words if word not in self._common)
        epoch, epochs = self._run.epoch or (0.0, 0.0)
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(overflow="ellipsis", no_wrap=True, max_width=self.console.width // 2)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        bar = ProgressBar(total=epochs or 1.0, completed=epoch)
        line.add_row(overrides, bar, self._run.progress(self._now()))
        return [line]

    def standing(self) -> str:
        """Return done of total, the time, the estimate and the money, as far as they are known."""
        parts = [f"{self.done}/{self.total} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts.append(f"{format.whole(self.elapsed())} elapsed")
        running = max(self.run_s - (self._now() - self._run.begin), 0.0) if self._run else 0.0
        if self.left is not None and (left := self.left + running):
            parts.append(f"about {format.whole(left)} left")
        parts.append("not priced" if self.spent is None else f"{format.usd(self.spent)} spent")
        return ", ".join(parts)


def outcome(record: Record | None, error: str | None, status: str = "failed") -> str:
    """Return how a run ended, in one line. `status` is that of a trial without a record."""
    if record is None or record.status == "failed":
        why = (record and record.error) or error or ""
        return f"{record.status if record else status}: {format.last_line(why)}"
    text = record.status.replace("_", " ")
    if record.time_to_accuracy is not None:
        text += f" after {format.duration(record.time_to_accuracy)}"
    elif record.best is not None:
        text += f", best {format.measured(record.best, record.experiment.task.metric_unit, record.goal)}"
    text += f" ({format.duration(record.wall)} in all)"
    return text + ("; oversubscribed" if record.oversubscribed else "")


def answer(groups: "Sequence[grouping.Group]", *, markdown: bool = False) -> str:
    """Return the answer of a study: for each task, scale and goal a table of its points and sentences."""
    from mlbench.report import answers
    from mlbench.report import tables as report_tables

    parts = []
    for group in groups:
        points = report_tables.points(group)
        places = [number for number, heading in enumerate(points.headings) if heading in ANSWERS]
        headings = [points.headings[column] + ANSWERS[points.headings[column]] for column in places]
        cells = [[row.cells[column] for column in places] for row in points.rows]
        rows = [[f"{cell.text} ({cell.below})" if cell.below else cell.text for cell in row] for row in cells]
        if markdown:
            parts += [f"### {group.heading}", "", tables.markdown(headings, rows), ""]
            parts += [f"{sentence}\n" for sentence in answers.answer(group)]
            continue
        parts += [group.heading, tables.table(headings, rows)]
        parts += ["\n".join(wrapped(sentence, WIDTH)) for sentence in answers.answer(group)] + [""]
    return "\n".join(parts).rstrip()


def _point(overrides: str) -> str:
    """Return the overrides of a run's point: all but its seed."""
    return overrides.rpartition(" seed=")[0]

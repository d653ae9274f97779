"""What a person sees of a sweep: a table of its points on a terminal, a line per run anywhere else."""

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mlbench.experiment import clock, format
from mlbench.experiment.record import FINISHED, Record
from mlbench.terminal import tables
from mlbench.terminal.live_view import View, never_raises

if TYPE_CHECKING:
    from mlbench.report import grouping
    from mlbench.report.tables import Cell

WIDTH = 79  # columns of a sentence
INTERVAL = " (95 % interval)"
ANSWERS: dict[str, str] = dict.fromkeys(("curve", "workers", "goal reached"), "")
ANSWERS |= dict.fromkeys(("time to accuracy", "speed-up"), INTERVAL)
ROOM = 8  # lines of a terminal that are left to other things than points
FEWEST = 4  # points that even a small terminal shows


@dataclass
class PointProgress:
    """One point of the sweep: its overrides, how many runs it needs, and the finished ones."""

    label: str
    runs: int
    records: list[Record] = field(default_factory=list)

    @property
    def median_time(self) -> str:
        """The median time to the goal as text; a run that missed it counts as infinite."""
        times = [
            math.inf if one.time_to_accuracy is None else one.time_to_accuracy
            for one in self.records
            if one.goal is not None
        ]
        if not times:
            return "-"
        return format.duration(median(times)) if math.isfinite(median(times)) else "missed"


class SweepView(View):
    """Counts the runs of a sweep and shows them.

    - spent: USD so far, None where nothing has a price. left: s that the missing runs take, if known.
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
        self.spent: float | None = None
        self._now = now
        self._begin = now()
        self._running = ""
        self._run_begin = now()

    def elapsed(self) -> float:
        return self._now() - self._begin

    @never_raises
    def say(self, text: str) -> None:
        """Print a line."""
        self.line(text)

    @never_raises
    def started(self, words: str) -> None:
        """Show which run is in progress; `words` are the point's overrides and the seed."""
        self._running, self._run_begin = words, self._now()
        self.line(f"{self.done + self.failed + 1}/{self.total} {words}")

    @never_raises
    def ended(self, words: str, record: Record | None, error: str | None) -> None:
        """Show how a run ended, and what is left of the sweep."""
        self._running = ""
        if record is not None and record.status in FINISHED:
            self.done += 1
            for point in self.points:
                if point.label == _point(words):
                    point.records.append(record)
        self.failed += record is None or record.status == "failed"
        self.line(f"    {outcome(record, error)}")
        if not self.live:
            self.line(f"    {self.standing()}")

    def screen(self) -> Group:
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("point", "done", "", "median", "now"):
            grid.add_column(heading, overflow="ellipsis", no_wrap=True)
        room = max(FEWEST, self.console.height - ROOM)
        running = _point(self._running)
        at = next((i for i, point in enumerate(self.points) if point.label == running), 0)
        first = max(0, min(at - room // 2, len(self.points) - room))
        for point in self.points[first : first + room]:
            now = ""
            if point.label == running:
                now = f"running, {format.whole(self._now() - self._run_begin)}"
            bar = ProgressBar(total=point.runs, completed=len(point.records), width=10)
            grid.add_row(point.label, f"{len(point.records)}/{point.runs}", bar, point.median_time, now)
        hidden = len(self.points) - min(room, len(self.points))
        more = [Text(f"and {format.counted(hidden, 'more point')}", style="dim")] if hidden else []
        return Group(grid, *more, Text(self.standing(), style="bold"))

    def standing(self) -> str:
        """Return done of total, the time, the estimate and the money, as far as they are known."""
        parts = [f"{self.done}/{self.total} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts.append(f"{format.whole(self.elapsed())} elapsed")
        if self.left:
            parts.append(f"about {format.whole(self.left)} left")
        parts.append("not priced" if self.spent is None else f"{format.usd(self.spent)} spent")
        return ", ".join(parts)


def outcome(record: Record | None, error: str | None) -> str:
    """Return how a run ended, in one line."""
    if record is None or record.status == "failed":
        return f"failed: {format.last_line((record and record.error) or error or '')}"
    text = record.status.replace("_", " ")
    if record.time_to_accuracy is not None:
        text += f" after {format.duration(record.time_to_accuracy)}"
    elif record.best is not None:
        text += f", best {format.number(record.best)} {record.experiment.task.metric_unit}".rstrip()
    text += f" ({format.duration(record.wall)} in all)"
    return text + ("; oversubscribed" if record.oversubscribed else "")


def answer(groups: "Sequence[grouping.Group]") -> str:
    """Return the answer of a study: for each task, scale and goal a table of its points and sentences."""
    from mlbench.report import summary
    from mlbench.report import tables as report_tables

    parts = []
    for group in groups:
        points = report_tables.points(group)
        places = [number for number, heading in enumerate(points.headings) if heading in ANSWERS]
        headings = [points.headings[place] + ANSWERS[points.headings[place]] for place in places]
        rows = [[_text(row.cells[place]) for place in places] for row in points.rows]
        parts.append(f"{group.task} {group.scale}, goal {group.goal or 'none'}")
        parts.append(tables.table(headings, rows))
        parts += [textwrap.fill(sentence, WIDTH) for sentence in summary.answer(group)] + [""]
    return "\n".join(parts).rstrip()


def _text(cell: "Cell") -> str:
    return f"{cell.text} ({cell.below})" if cell.below else cell.text


def _point(words: str) -> str:
    """Return the overrides of a run's point: all but its seed."""
    return words.rpartition(" seed=")[0]

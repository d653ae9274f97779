"""What a person sees of a sweep: a line for each trial that begins or ends, and how much is left."""

from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from mlbench.experiment import clock, format
from mlbench.experiment.record import FINISHED, Record


class Tally:
    """Counts the trials of a sweep and prints; a context manager.

    On a terminal a last line ticks while a trial runs. Everything goes to stderr.
    """

    def __init__(
        self,
        *,
        total: int,
        done: int,
        console: Console | None = None,
        now: Callable[[], float] = clock.wall,
    ) -> None:
        self.total, self.done, self.failed = total, done, 0
        self.left: float | None = None  # s
        self.spent: float | None = None  # USD
        self._console = console or Console(stderr=True)
        self._now = now
        self._begun = now()
        self._running = ""
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if live else None

    def __enter__(self) -> "Tally":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        elapsed = self._now() - self._begun
        line = format.printable(f"[{elapsed:5.0f} s] {text}", self._console.encoding)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def started(self, words: str) -> None:
        """Tell which trial runs now."""
        self._running = words
        self.say(f"{self.done + self.failed + 1}/{self.total} {words}")

    def ended(self, words: str, record: Record | None, *, error: str | None) -> None:
        """Tell how a trial ended, and what is left of the sweep."""
        self._running = ""
        self.done += record is not None and record.status in FINISHED
        self.failed += record is None or record.status == "failed"
        self.say(f"    {outcome(record, error)}")
        self.say(f"    {self.standing()}")

    def tick(self) -> None:
        """Draw the last line anew."""
        if self._live:
            running = f"{self._running}: " if self._running else ""
            self._live.update(Text(f"{running}{self.standing()}", style="bold"), refresh=True)

    def standing(self) -> str:
        """Return done of total, the time, the estimate and the money, as far as they are known."""
        parts = [f"{self.done}/{self.total} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts.append(f"{format.whole(self._now() - self._begun)} elapsed")
        if self.left:
            parts.append(f"about {format.whole(self.left)} left")
        parts.append("not priced" if self.spent is None else f"{format.usd(self.spent)} spent")
        return ", ".join(parts)


def outcome(record: Record | None, error: str | None) -> str:
    """Return how a trial ended, in one line."""
    if record is None or record.status == "failed":
        return f"failed: {format.last_line((record and record.error) or error or '')}"
    text = record.status.replace("_", " ")
    if record.time_to_accuracy is not None:
        text += f" after {format.duration(record.time_to_accuracy)}"
    elif record.best is not None:
        text += f", best {format.number(record.best)} {record.experiment['task']['metric_unit']}".rstrip()
    text += f" ({format.duration(record.wall)} in all)"
    return text + ("; oversubscribed" if record.oversubscribed else "")

"""What a person sees on the terminal: help, progress while a run trains, and its result card.

Progress goes to stderr and the card to stdout, so that either can be piped. A terminal gets a live screen;
anything else gets plain lines. Drawing happens in one thread of the driver, at most some times a second.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live

from mlbench.experiment import clock, format
from mlbench.experiment.config import Experiment
from mlbench.experiment.record import Record
from mlbench.tasks import registry
from mlbench.terminal import frame, next_steps, result_card
from mlbench.terminal.args import ignore_broken_pipe
from mlbench.terminal.run_state import TRAINING, Connected, Course

REDRAW_S = 1.0  # s between two frames of the live screen; signs of life come no faster
PIPE_WIDTH = 160  # columns of a table, where the output is not a terminal that has a width
QUIET_S = 10  # s of silence after which plain lines show that the run is alive


def show_card(record: Record, *, folder: Path, where: str | None, tracking_uri: str) -> None:
    """Print the result card; `where` is the MLflow run's id, None if MLflow could not be reached."""
    _show(record, next_steps.links(record, folder=folder, where=where, tracking_uri=tracking_uri))


def reused(record: Record, experiment: Experiment) -> None:
    """Print the card of a finished run that stands for the experiment, and how to measure again."""
    _print(
        Console(stderr=True),
        f"already measured at {record.started_at}: the result with seed={record.seed} is shown again; "
        "force=true measures anew",
    )
    show_stored(
        record, folder=experiment.output_root.absolute() / record.run_id, tracking_uri=experiment.store
    )


def show_stored(record: Record, *, folder: Path, tracking_uri: str, full: bool = False) -> None:
    """Print the card of a run of the past."""
    _show(record, next_steps.stored(record, folder=folder, tracking_uri=tracking_uri))


def _show(record: Record, below: next_steps.Lines) -> None:
    console = Console()
    _show_table(record, console)
    lines = [f"{label + ':' if label else '':16}{text}" for label, text in below]
    with ignore_broken_pipe():
        if console.is_terminal and not console.options.ascii_only:
            console.print(result_card.panel(record, width=console.width))
        else:
            lines.insert(0, result_card.plain(record))
        _print(console, "\n".join(lines))


def _show_table(record: Record, console: Console) -> None:
    """Print the table of a task that presents its own; no column of a file or pipe is cut."""
    report = registry.report(record.experiment["task"]["name"])
    if report and record.table:
        rate = record.experiment["hardware"]["network_gbit_per_s"]
        wide = console if console.is_terminal else Console(width=PIPE_WIDTH)
        with ignore_broken_pipe():
            wide.print(report.terminal(record.table, network_gbit_per_s=rate))


def _print(console: Console, text: str) -> None:
    """Write text as it is: no markup, and no line broken that someone may want to copy."""
    lines = (format.printable(line, console.encoding) + "\n" for line in text.splitlines())
    console.file.write("".join(lines))
    console.file.flush()


class _View(Protocol):
    """How the course is shown. `changed` follows every sign and event, `tick` every REDRAW_S."""

    def open(self) -> None: ...
    def changed(self) -> None: ...
    def tick(self) -> None: ...
    def close(self) -> None: ...


class Progress:
    """Shows a run while it lasts; a context manager.

    - begun: wall clock at which the command started; (default) now.
    - console: where to; (default) stderr.
    - now: the wall clock, replaced in tests.
    """

    def __init__(
        self,
        experiment: Experiment,
        seed: int,
        *,
        begun: float | None = None,
        console: Console | None = None,
        now: Callable[[], float] = clock.wall,
    ) -> None:
        console = console or Console(stderr=True)
        self._course = Course(experiment, seed=seed, begun=now() if begun is None else begun, now=now)
        live = console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
        # Ray's own log, which `verbose` asks for, would tear a live screen apart.
        drawn = live and not experiment.verbose
        self._view: _View = _Screen(self._course, console) if drawn else _Lines(self._course, console)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._keep_ticking, name="display", daemon=True)

    def __enter__(self) -> "Progress":
        self._show(self._view.open)
        self._ticker.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._ticker.join()
        self._show(self._view.close)

    def say(self, text: str) -> None:
        """Show what happens now."""
        with self._lock:
            self._course.doing = text
            self._show(self._view.changed)

    def connected(self, connection: Connected) -> None:
        """Show what the cluster gives."""
        with self._lock:
            self._course.connected(connection)
            self._show(self._view.changed)

    def sign(self, sign: dict[str, Any]) -> None:
        """Show a worker's sign of life."""
        with self._lock:
            self._course.sign(sign)
            self._show(self._view.changed)

    def event(self, event: dict[str, Any]) -> None:
        """Show a line of the event log."""
        with self._lock:
            self._course.event(event)
            self._show(self._view.changed)

    def tick(self) -> None:
        """Draw the screen anew, or show after a silence that the run is alive; happens every REDRAW_S."""
        with self._lock:
            self._show(self._view.tick)

    def _show(self, draw: Callable[[], None]) -> None:
        with suppress(OSError):  # a terminal that went away must not end a measurement
            draw()

    def _keep_ticking(self) -> None:
        while not self._ended.wait(REDRAW_S):
            self.tick()


class _Screen:
    """A few lines of a terminal, drawn anew at every tick and gone at the end: the card says it all."""

    def __init__(self, course: Course, console: Console) -> None:
        self._live = Live(
            console=console,
            get_renderable=lambda: frame.screen(course),
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        )

    def open(self) -> None:
        self._live.start(refresh=True)

    def changed(self) -> None: ...

    def tick(self) -> None:
        self._live.refresh()

    def close(self) -> None:
        self._live.stop()


class _Lines:
    """One line a validation and a change of state, and one every QUIET_S seconds otherwise."""

    def __init__(self, course: Course, console: Console) -> None:
        self._course = course
        self._console = console
        self._said: set[str] = set()
        self._warned = 0
        self._validated = 0
        self._last = course.elapsed

    def open(self) -> None:
        self._print(frame.headline(self._course))

    def changed(self) -> None:
        course = self._course
        if len(course.warnings) > self._warned:
            for warning in course.warnings[self._warned :]:
                self._print(f"warning: {warning}")
            self._warned = len(course.warnings)
            self._said.clear()
        if len(course.values) > self._validated:
            self._validated = len(course.values)
            parts = [frame.validated(course), *frame.pace(course)]
            self._print(f"epoch {format.number(course.values[-1][0])}: {', '.join(parts)}")
        if course.doing not in self._said:
            self._said.add(course.doing)
            self._print(course.doing)

    def tick(self) -> None:
        course = self._course
        if course.elapsed - self._last < QUIET_S:
            return
        parts = [course.doing]
        if course.doing == TRAINING:
            parts = [f"{TRAINING}: {frame.position(course)}", *frame.pace(course), *frame.left(course)]
        self._print(", ".join(parts))

    def close(self) -> None: ...

    def _print(self, text: str) -> None:
        self._last = self._course.elapsed
        _print(self._console, f"[{self._last:5.0f} s] {text}")

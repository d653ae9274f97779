"""Show a run or a sweep while it lasts: bars on a terminal, plain lines anywhere else.

Everything goes to stderr. A view never raises: a failure is printed once, and the run goes on without it.
"""

import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mlbench import clock
from mlbench.config.experiment import Experiment
from mlbench.launch.output import Display
from mlbench.record import format
from mlbench.record.messages import Heartbeat
from mlbench.terminal.run_progress import TRAINING, RunState

REDRAW_S = 1.0  # s between two frames, as heartbeats come no faster
QUIET_S = 10  # s of silence after which plain lines show that the run is alive
WARNINGS = 3  # latest ones on the screen


def never_raises(method: Callable[..., None]) -> Callable[..., None]:
    """Let a view's method fail without the run that it shows: print that once, then show nothing more."""

    @wraps(method)
    def guarded(self: "View", *args: Any) -> None:
        if self.broken:
            return
        try:
            with self.lock:
                method(self, *args)
        except (Exception, SystemExit) as error:  # rich exits if its output is a broken pipe
            self.broken = True
            self.give_up(error)

    return guarded


def stderr() -> Console:
    """Return the console of stderr. With FORCE_COLOR a CI job's log gets colours, but is no screen."""
    return Console(stderr=True, force_interactive=None if sys.stderr.isatty() else False)


def console(file: TextIO) -> Console:
    """Return the console of a file, e.g. a terminal that is not this process's own."""
    if file is sys.stderr:
        return stderr()
    if not file.isatty():
        return Console(file=file, force_interactive=False)
    return Console(file=file, force_terminal=True, width=os.get_terminal_size(file.fileno()).columns)


class View:
    """A live screen on a terminal, or plain lines. A context manager whose subclasses define the content."""

    def __init__(self, console: Console | None, *, lines_only: bool = False) -> None:
        self.console = console or stderr()
        drawn = self.console.is_interactive and not self.console.options.ascii_only and not lines_only
        self.live = Live(console=self.console, auto_refresh=False, transient=True) if drawn else None
        self.lock = threading.RLock()
        self.broken = False
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="display", daemon=True)

    def screen(self) -> RenderableType:
        """Return one frame."""
        raise NotImplementedError

    def quiet(self) -> None:
        """Print a plain line if there was none for long."""

    def elapsed(self) -> float:
        """Return the seconds that plain lines begin with."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        self._open()
        self._ticker.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._ticker.join()
        self._close()

    @never_raises
    def redraw(self) -> None:
        """Draw the screen again, or print that the run is alive."""
        if self.live:
            self.live.update(self.screen(), refresh=True)
        else:
            self.quiet()

    def line(self, text: str) -> None:
        """Print one line, never broken, so that it can be copied."""
        text = format.printable(f"[{self.elapsed():5.0f} s] {text}", self.console.encoding)
        if self.live:
            self.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
        else:
            self.console.file.write(text + "\n")
            self.console.file.flush()

    def give_up(self, error: BaseException) -> None:
        """Stop the display, and print that unless the terminal went away."""
        try:
            if self.live:
                self.live.stop()
            self.line(f"the display failed and is off, the run continues: {type(error).__name__}: {error}")
        except (Exception, SystemExit):  # there is no reader
            self.live = None

    @never_raises
    def _open(self) -> None:
        if self.live:
            self.live.start()

    @never_raises
    def _close(self) -> None:
        if self.live:
            self.live.stop()

    def _tick(self) -> None:
        while not self._over.wait(REDRAW_S):
            self.redraw()


class RunView(View, Display):
    """The view of one run.

    - command_started: wall clock (default: now).
    - console: for the output (default: stderr).
    - now: the wall clock, replaced in tests.
    """

    def __init__(
        self,
        experiment: Experiment,
        seed: int,
        *,
        command_started: float | None = None,
        console: Console | None = None,
        now: Callable[[], float] = clock.wall,
    ) -> None:
        # Ray's log, which `verbose` prints, would tear a live screen apart.
        super().__init__(console, lines_only=experiment.verbose)
        begin = now() if command_started is None else command_started
        self.state = RunState(experiment, seed=seed, command_started=begin, now=now)
        self._activities: set[str] = set()  # printed since the last failure
        self._warned = self._validated = 0
        self._last = self.state.elapsed

    def elapsed(self) -> float:
        self._last = self.state.elapsed
        return self._last

    @never_raises
    def say(self, text: str) -> None:
        self.state.activity = text
        self._changed()

    @never_raises
    def connected(self, threads: int, oversubscribed: bool) -> None:
        self.state.connected(threads, oversubscribed)
        self._changed()

    @never_raises
    def heartbeat(self, heartbeat: Heartbeat) -> None:
        self.state.heartbeat(heartbeat)
        self._changed()

    @never_raises
    def event(self, event: dict[str, Any]) -> None:
        self.state.event(event)
        self._changed()

    def screen(self) -> Group:
        state, bars = self.state, []
        times = [f"{format.whole(state.elapsed)} since the command"]
        if state.trained is not None:
            times.append(f"{format.whole(state.trained)} on the run's clock")
        lines = ["; ".join([", ".join(times), *state.estimate()])]
        if state.rates():
            lines.insert(0, ", ".join(state.rates()))
        if state.epochs is None:
            lines.insert(0, state.activity)
        else:
            bars.append((state.activity, state.epoch / state.epochs, state.position()))
            if state.goal():
                bars.append((state.experiment.task.metric, self._share_of_goal(), state.goal()))
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column()
        grid.add_column(ratio=1)
        grid.add_column()
        for label, share, text in bars:
            grid.add_row(label, ProgressBar(total=1.0, completed=share), text)
        warnings = [Text(f"! {warning}", style="yellow") for warning in state.warnings[-WARNINGS:]]
        return Group(Text(state.headline(), style="bold cyan"), grid, *map(Text, lines), *warnings)

    def quiet(self) -> None:
        state = self.state
        if state.elapsed - self._last < QUIET_S:
            return
        parts = [state.activity]
        if state.activity == TRAINING:
            parts = [f"{TRAINING}: {state.position()}", *state.rates(), *state.estimate()]
        self.line(", ".join(parts))

    def _changed(self) -> None:
        """Print a line for a new state, validation or warning, if there is no screen."""
        if self.live:
            return
        state = self.state
        if not self._activities:
            self.line(state.headline())
            self._activities.add("")
        for warning in state.warnings[self._warned :]:
            self.line(f"warning: {warning}")
            self._activities = {""}  # what follows a failure is news again
        if len(state.values) > self._validated:
            parts = [f"{state.experiment.task.metric} {state.goal()}", *state.rates()]
            self.line(f"epoch {format.number(state.values[-1][0])}: {', '.join(parts)}")
        self._warned, self._validated = len(state.warnings), len(state.values)
        if state.activity not in self._activities:
            self._activities.add(state.activity)
            self.line(state.activity)

    def _share_of_goal(self) -> float:
        """Return how much of the way from the first validation to the goal is done."""
        goal, values = self.state.experiment.target, [value for _, value in self.state.values]
        if goal is None or not values:
            return 0.0
        if goal.reached(values[-1]):
            return 1.0
        way = goal.target - values[0]
        return min(max((values[-1] - values[0]) / way, 0.0), 1.0) if way else 0.0

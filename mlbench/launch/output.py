"""What a run shows while it goes on and at its end. The command hands it in. These classes show nothing.

`terminal.show.Terminal` is the output of the commands, `event_stream.EventStream` the display in a pod.
"""

from pathlib import Path
from typing import Any

from mlbench.config.experiment import Experiment
from mlbench.record.messages import Heartbeat
from mlbench.record.record import Record


class Display:
    """Shows a run in progress, as a context manager."""

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: Any) -> None: ...

    def say(self, text: str) -> None:
        """Show what happens now."""

    def connected(self, threads: int, oversubscribed: bool) -> None:
        """Show the compute threads of a worker, and whether those of all are more than CPUs."""

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        """Show a worker's heartbeat."""

    def event(self, event: dict[str, Any]) -> None:
        """Show a line of the event log."""


class Output:
    """Shows runs."""

    def display(self, experiment: Experiment, seed: int, *, command_started: float) -> Display:
        """Return what shows a run in progress. `command_started` is a wall clock, s since 1970."""
        return Display()

    def sentence(self, text: str) -> None:
        """Show a sentence next to the result."""

    def line(self, text: str, *, result: bool = False) -> None:
        """Show a line to copy from. `result`: it is what the command was for."""

    def card(self, record: Record, *, folder: Path, where: str | None, tracking_uri: str) -> None:
        """Show a run that has ended. `where` is its id in MLflow, or None if that was not reached."""

    def reused(self, record: Record, experiment: Experiment) -> None:
        """Show the cached record of an identical finished run."""

    def figures(self, folder: Path) -> None:
        """Draw the figures of the run whose record is in the folder, into the same folder, for MLflow."""

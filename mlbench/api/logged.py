"""Progress of runs that Python code starts: records of the logger `mlbench`, for the program to route."""

import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mlbench.config.experiment import Experiment
from mlbench.launch.output import Display, Output
from mlbench.record.record import Record
from mlbench.report import drawing_process
from mlbench.terminal.sweep_view import PointProgress, SweepView

LOG = logging.getLogger("mlbench")


class LoggedDisplay(Display):
    """Logs what happens now and validations as INFO, other lines of the event log as DEBUG."""

    def say(self, text: str) -> None:
        LOG.info("%s", text)

    def event(self, event: dict[str, Any]) -> None:
        level = logging.INFO if event["key"] == "validation" else logging.DEBUG
        LOG.log(level, "%s %s", event["key"], event["value"])


class Logged(Output):
    """Logs sentences as warnings and the end of a run as INFO; prints nothing."""

    def display(self, experiment: Experiment, seed: int, *, command_started: float) -> LoggedDisplay:
        LOG.info("task=%s workers=%d seed=%d", experiment.task.name, experiment.workers, seed)
        return LoggedDisplay()

    def sentence(self, text: str) -> None:
        LOG.warning("%s", text)

    def line(self, text: str, *, result: bool = False) -> None:
        LOG.info("%s", text)

    def card(self, record: Record, *, folder: Path, where: str | None, tracking_uri: str) -> None:
        LOG.info("%s: %s in %s", record.run_id, record.status, folder)

    def reused(self, record: Record, experiment: Experiment) -> None:
        LOG.info("%s: already measured at %s, force=true measures again", record.run_id, record.started_at)

    def figures(self, folder: Path) -> None:
        if (why := drawing_process.draw(folder)) is not None:
            LOG.warning("no figures in MLflow: %s", why)


class LoggedSweep(SweepView):
    """Logs what a sweep does as INFO, a line per run; draws nothing."""

    def __init__(self, points: Sequence[PointProgress]) -> None:
        super().__init__(points, console=Console(file=io.StringIO()))

    def line(self, text: str) -> None:
        LOG.info("%s", text)

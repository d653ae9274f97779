"""Follows the log of a study while its trials run: results, cost, and the time that is left."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlbench.experiment import events, format, study
from mlbench.experiment.record import FINISHED
from mlbench.experiment.study import Trial
from mlbench.studies.budget import Budget
from mlbench.terminal.sweep_view import SweepView


class StudyMonitor:
    """Reads what the log of a study gains, and shows it.

    - remaining: the trials that have not ended, by id.
    - unmeasured: a sentence for every trial that ended without a result.
    - refusal: why the budget allowed no further trial; empty: it did.
    """

    def __init__(
        self, missing: Sequence[Trial], budget: Budget, *, folder: Path, progress: SweepView
    ) -> None:
        self.remaining = {trial.id: trial for trial in missing}
        self.unmeasured: list[str] = []
        self.refusal = ""
        self._budget, self._folder, self._progress = budget, folder, progress
        self._follower = events.Follower(folder / study.LOG)
        self._follower.take()

    def update(self) -> None:
        """Process the new events."""
        for event in self._follower.take():
            value = event["value"]
            trial = self.remaining.get(value.get("trial", ""))
            if trial is None:
                continue
            if event["key"] == study.STARTED:
                self._progress.started(shlex.join(trial.words))
            elif event["key"] == study.REFUSED:
                self.refusal = value["reason"]
            elif event["key"] == study.ENDED:
                del self.remaining[trial.id]
                self._ended(trial, value)
        self._progress.redraw()

    def _ended(self, trial: Trial, value: dict[str, Any]) -> None:
        words = shlex.join(trial.words)
        runs = study.attempts(trial, self._folder.parent.parent)
        run = next((one for one in runs if one.run_id == value["run_id"]), None)
        if run is not None:
            self._budget.add(run, seconds=value["seconds"])
        if value["status"] not in FINISHED:
            error = format.last_line(value["error"] or "")
            self.unmeasured.append(f"{words}: {value['status']}: {error}")
        self._progress.spent = self._budget.spent
        self._progress.left = self._budget.left([one.point.key for one in self.remaining.values()])
        self._progress.ended(words, run, value["error"])

"""Follows the log of a study while its trials run: what they cost, what is left, whether the money lasts."""

import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlbench.experiment import events, format, study
from mlbench.experiment.record import FINISHED
from mlbench.experiment.study import Trial
from mlbench.studies.budget import Budget
from mlbench.terminal.sweep_view import SweepView


class Watch:
    """Follows the study's log while Tune runs, and tells what happens."""

    def __init__(self, missing: Sequence[Trial], budget: Budget, *, folder: Path, tally: SweepView) -> None:
        self.left = {trial.id: trial for trial in missing}
        self.budget, self.folder, self.tally = budget, folder, tally
        self.unmeasured: list[str] = []
        self.refused = ""
        self.lock = threading.Lock()  # Tune's thread looks as well
        self.follower = events.Follower(folder / study.LOG)
        self.follower.take()

    def allowed(self, trial: Trial) -> bool:
        """Say whether the money lasts for one more run; Tune's thread asks, after the last run was logged."""
        self.look()
        self.refused = self.budget.refusal(trial.point.key) or ""
        return not self.refused

    def look(self) -> None:
        """Take in what the log has gained."""
        with self.lock:
            for event in self.follower.take():
                trial = self.left.get(event["value"]["trial"])
                if trial is None:
                    continue
                words = shlex.join(trial.words)
                if event["key"] == study.STARTED:
                    self.tally.started(words)
                else:
                    del self.left[trial.id]
                    self._ended(trial, words, event["value"])
            self.tally.redraw()

    def _ended(self, trial: Trial, words: str, told: dict[str, Any]) -> None:
        runs = study.attempts(trial, self.folder.parent.parent)
        found = next((one for one in runs if one.run_id == told["run_id"]), None)
        if found is not None:
            self.budget.add(found, seconds=told["seconds"])
        if told["status"] not in FINISHED:
            error = format.last_line(told["error"] or "")
            self.unmeasured.append(f"{words}: {told['status']}: {error}")
        self.tally.spent = self.budget.spent
        self.tally.left = self.budget.left([trial.point.key for trial in self.left.values()])
        self.tally.ended(words, found, told["error"])

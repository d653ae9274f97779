"""How a sweep ended, and what it leaves for its readers: the report, and the parent run in MLflow."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mlbench.experiment import events, run_folders, study
from mlbench.experiment.credentials import without_credentials
from mlbench.experiment.record import Record
from mlbench.experiment.study import Study
from mlbench.tracking import parent_runs

if TYPE_CHECKING:
    from mlbench.report.grouping import Group


@dataclass
class StudyResult:
    """How a sweep ended; `unmeasured` has a sentence for every trial without a result."""

    study: Study
    folder: Path
    store: str  # tracking URI
    records: list[Record] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def output_root(self) -> Path:
        return self.folder.parent.parent


def publish(result: StudyResult) -> None:
    """Write the report, and the parent run with it into MLflow."""
    from mlbench.report import writer

    if result.records:
        found = writer.groups(result.records)  # once: their bootstraps take seconds
        _report(result.study, result.records, result.folder, found)
        _to_mlflow(result, found)


def _report(plan: Study, records: Sequence[Record], folder: Path, found: "Sequence[Group]") -> None:
    """Write figures, tables and the page."""
    from mlbench.report import writer

    log = folder / study.LOG
    ended = (e["value"] for e in (events.read(log) if log.exists() else ()) if e["key"] == study.ENDED)
    errors = {value["trial"]: value["error"] for value in ended}
    planned = [
        writer.Planned(
            shlex.join(trial.point.words),
            trial.point.key,
            trial.seed,
            why=errors.get(trial.id) or "",
        )
        for trial in study.trials(plan)
    ]
    lost = tuple(study.lost_attempts(folder, records))
    text = writer.StudyText(plan.name, plan.question, study.commands(plan), tuple(planned), lost)
    writer.write(records, folder / study.REPORT, study=text, found=found)


def _to_mlflow(result: StudyResult, found: "Sequence[Group]") -> None:
    """Write the parent run; a store that does not answer loses nothing and fails nothing."""
    status = "FAILED" if result.unmeasured else "FINISHED"
    try:
        parent_runs.write(
            result.study,
            result.records,
            output_root=result.output_root,
            uri=result.store,
            status=status,
            found=found,
        )
    except Exception as error:  # whatever MLflow and what lies below it raise
        reason = without_credentials(str(error)).splitlines()[0]
        later = run_folders.results_command("sync", result.output_root)
        result.notes.append(f"MLflow could not be reached ({reason}): {later}")

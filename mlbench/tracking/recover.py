"""The record of a run whose driver died before it could write one."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mlbench.experiment import events, record
from mlbench.experiment.build_record import conclude
from mlbench.experiment.config import Experiment
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record
from mlbench.tasks import registry


def recover(folder: Path) -> Record:
    """Conclude a run from what its log holds, and complete its folder: record, then `run_stop`.

    A record that the driver had time to write is kept. Otherwise the run was `interrupted` at its log's last
    event, whatever that event says. Raises UserError where this version cannot read the log.
    """
    log = events.read(folder / events.NAME)
    try:
        found = record.load(folder / "record.json")
    except (FileNotFoundError, ValidationError):
        found = _concluded(folder, log)
        found.save(folder)
    if _stops(log)[-1:] != [found.status]:
        events.append(folder / events.NAME, "run_stop", {"status": found.status}, kind="INTERVAL_END")
    return found


def _stops(log: list[dict[str, Any]]) -> list[str]:
    """Return the statuses with which the log says that the run ended."""
    return [event["value"]["status"] for event in log if event["key"] == "run_stop"]


def _concluded(folder: Path, log: list[dict[str, Any]]) -> Record:
    start = next(event["value"] for event in log if event["key"] == "run_configuration")
    plain = start["experiment"]
    try:
        task = registry.load(plain["task"]["name"]).Config.model_validate(plain["task"])
        experiment = Experiment.model_validate({**plain, "task": task})
    except (ValidationError, UserError) as error:
        raise UserError(
            f"{folder} was made by another version of mlbench", hint="use that version to sync it"
        ) from error
    measured = {
        "status": "interrupted",
        "error": "its record was lost" if _stops(log) else "the command that ran this was killed",
        "ended": log[-1]["time_ms"] / 1000,
        "stamps": {},
        "returned": None,
    }
    return conclude(experiment, start=start, measured=measured, log=log)

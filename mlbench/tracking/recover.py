"""The record of a run whose driver died before it could write one."""

from pathlib import Path
from typing import Any

from mlbench.experiment import events, record
from mlbench.experiment.build_record import build_record
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record, RunEnd


def recover(folder: Path) -> Record:
    """Build a run's record from its log, and complete its folder: record, then `run_stop`.

    A record that the driver had time to write is kept. A run without `run_result` in its log was
    `interrupted` at the log's last event, whatever that event says. Raises UserError where this version
    cannot read the log.
    """
    log = events.read(folder / events.NAME)
    try:
        found = record.load(folder / "record.json")
    except (FileNotFoundError, UserError):
        found = _rebuilt(folder, log)
        found.save(folder)
    if _stops(log)[-1:] != [found.status]:
        events.append(folder / events.NAME, "run_stop", {"status": found.status}, kind="INTERVAL_END")
    return found


def _stops(log: list[dict[str, Any]]) -> list[str]:
    """Return the statuses with which the log says that the run ended."""
    return [event["value"]["status"] for event in log if event["key"] == "run_stop"]


def _rebuilt(folder: Path, log: list[dict[str, Any]]) -> Record:
    if not any(event["key"] == "run_result" for event in log):
        error = "its record was lost" if _stops(log) else "the command that ran this was killed"
        end = RunEnd(status="interrupted", error=error, ended=log[-1]["time_ms"] / 1000)
        events.append(folder / events.NAME, "run_result", end.model_dump(mode="json"))
        log = events.read(folder / events.NAME)
    try:
        return build_record(log)
    except UserError as error:
        raise UserError(f"{folder}: {error.message}", hint=error.hint) from error

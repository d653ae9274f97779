"""The notebooks' sample, a study that was really measured, as an output_root with event logs."""

import shutil
from datetime import datetime
from pathlib import Path

from conftest import ROOT

from mlbench.record import events, reader
from mlbench.record.record import Record, RunStart

SAMPLE = ROOT / "notebooks" / "sample"
STUDY = "two-cores"


def copy(to: Path) -> Path:
    """Copy the sample to `to`, and write the event log that MLflow is filled from where a run has none."""
    shutil.copytree(SAMPLE, to)
    for path in to.glob("*/record.json"):
        if not (path.parent / events.NAME).exists():
            _log(reader.load(path), path.parent / events.NAME)
    return to


def _log(record: Record, path: Path) -> None:
    """Write the events of a record; of the phases of a rank the mean is known."""
    begun = datetime.fromisoformat(record.started_at).timestamp()
    shared = {
        name: getattr(record, name) for name in ("run_id", "key", "command", "mlbench", "seed", "software")
    }
    start = RunStart(experiment=record.experiment, begun=begun, **shared)
    events.append(path, "run_configuration", start.model_dump(mode="json"))
    for validation, interval in zip(record.validations, record.intervals, strict=True):
        rank = {
            "phases": {phase: stats.mean for phase, stats in interval.phases.items()},
            "overlapped_communication": getattr(interval.overlapped_communication, "mean", 0.0),
            "steps": interval.steps,
            "samples": interval.samples // record.workers,
        }
        metadata = {
            "started_at": begun + (record.startup_time or 0.0),
            "phase_times": [rank] * record.workers,
        }
        events.append(path, "validation", validation.model_dump(mode="json"), **metadata)
    events.append(path, "run_stop", {"status": record.status}, kind="INTERVAL_END")

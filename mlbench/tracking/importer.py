"""Import runs that were measured elsewhere, and delete runs, with folders and MLflow in step."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from mlbench.config.errors import ResultError
from mlbench.record import events, run_folders
from mlbench.record.record import Record
from mlbench.tracking import sync
from mlbench.tracking.uploader import Draw, lock


def import_run(
    record: Record,
    log: Sequence[dict[str, Any]],
    *,
    output_root: Path,
    uri: str,
    complete: set[str],
    draw: Draw | None = None,
) -> Literal["imported", "present"]:
    """Give an imported record a folder and a run in MLflow, once. Raises UserError if either fails.

    - complete: the runs that the store has in full (sync.uploaded_runs).
    - draw: (default: no figures).
    """
    folder = output_root / record.run_id
    new = not any((folder / name).exists() for name in (events.NAME, "record.json"))
    if new:
        _write(record, log, folder)
    elif record.run_id in complete:
        return "present"
    brought = sync.upload(folder, record.run_id, uri, draw=draw)
    if brought.outcome == "failed":
        raise ResultError(
            f"{record.run_id} is in {folder}, but not in MLflow: {brought.why}",
            hint=run_folders.results_command("sync", output_root),
        )
    return "imported" if new else "present"


def _write(record: Record, log: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the run's folder, the whole log first: from it `sync` makes the record of a killed import."""
    part = folder / f"{events.NAME}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text("".join(json.dumps(event, allow_nan=False) + "\n" for event in log))
        part.replace(folder / events.NAME)
        record.save(folder)
    except OSError as error:
        raise ResultError(
            f"cannot write {folder}: {error.strerror}", hint="give another output_root"
        ) from error


def delete(folder: Path, uri: str) -> bool:
    """Delete a run's folder and its run in MLflow. Return whether MLflow had one.

    Raises UserError, and deletes nothing, if the run is still running or the store does not answer. The same
    holds if the folder is not itself a folder, e.g. a link to one.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise ResultError(f"{folder} is a link, not a run folder", hint="delete the link yourself")
    log = folder / events.NAME
    if log.is_symlink():
        raise ResultError(
            f"{log} is a link, so this is not a run folder", hint="inspect it, then delete it yourself"
        )
    try:
        descriptor = lock(folder)
    except BlockingIOError as error:
        raise ResultError(f"{folder.name} is still running", hint="end it first, with Ctrl-C") from error
    try:
        present = sync.ask(uri, lambda client: client.delete(folder.name), absent=False)
        shutil.rmtree(folder)  # removes links below it, never what they point to
    except OSError as error:
        raise ResultError(f"cannot delete {folder}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return present

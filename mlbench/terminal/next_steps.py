"""Build the commands below a result card, printed unbroken so that you can copy them."""

import os
import shlex
from pathlib import Path

from mlbench.config import libraries, overrides
from mlbench.config.credentials import without_credentials
from mlbench.config.store_uri import default_store
from mlbench.record import run_folders
from mlbench.record.record import FINISHED, Record

SQLITE = "sqlite:///"


def lacking(record: Record, *, folder: Path, where: str | None, tracking_uri: str) -> list[str]:
    """Return what to do if the run is not in MLflow yet. `where` is its id there."""
    if where is not None:
        return []
    if not libraries.is_installed("mlflow"):
        reason = f"MLflow is not installed ({libraries.command('mlflow')})"
    elif record.status == "interrupted":
        reason = "not in MLflow yet (interrupted)"
    else:
        reason = f"MLflow: {without_credentials(tracking_uri)} could not be reached (results are kept)"
    return [f"{reason}. Upload it with", f"  {run_folders.results_command('sync', folder.parent)}"]


def stored(record: Record, *, folder: Path, tracking_uri: str) -> list[str]:
    """Return the command that repeats the run, its folder, and how to open MLflow."""
    own = record.source == "mlbench"  # another suite's run cannot be repeated here
    labelled = [("run again", again(record))] if own else []
    labelled += [("files", str(folder)), opening(tracking_uri)]
    return [f"{label + ':':16}{text}" for label, text in labelled]


def full(record: Record, folder: Path) -> str:
    """Return the command that shows everything that was measured."""
    names = sorted(path.parent.name for path in folder.parent.glob("*/record.json"))
    short = record.run_id.rsplit("-", 1)[-1]
    run = short if len(run_folders.matching(names, short)) <= 1 else record.run_id
    return f"{run_folders.results_command('show', folder.parent)} {shlex.quote(run)} --full"


def printed(folder: Path) -> str | None:
    """Return the files of a run with what its script printed, or None without one."""
    files = sorted([*folder.glob("output.log"), *folder.glob("rank_*.log")])
    if len(files) > 1:
        return f"{shlex.quote(str(folder))}/rank_*.log"
    return shlex.quote(str(files[0])) if files else None


def again(record: Record) -> str:
    """Return the command that repeats the run: as it was given, with the seed that was drawn."""
    try:
        command = [w for w in shlex.split(record.command) if not w.startswith(("seed=", "force="))]
        if command[:2] == ["python", "-m"] and command[2].startswith("mlbench."):  # as records have it
            command[:3] = command[2].split(".", 1)
    except ValueError:
        return ""  # no command line
    if "--" in command:  # a launcher's command line, which sets its seed itself
        return without_credentials(shlex.join(command))
    command = overrides.typed([*command, f"seed={record.seed}"])
    if record.status in FINISHED:
        command.append("force=true")  # else the stored result would be shown
    return without_credentials(shlex.join(command))


def opening(uri: str) -> tuple[str, str]:
    """Return the command that opens a store's runs in MLflow, with columns that show results."""
    uri = without_credentials(uri)
    if uri.startswith("databricks"):
        return "MLflow", f"the workspace behind {uri}"
    folder = Path(uri.removeprefix(SQLITE)).parent
    if uri == default_store(folder):
        near = os.path.relpath(folder)
        root = folder if near.startswith("..") else Path(near)
        return "MLflow", run_folders.results_command("mlflow", root)
    return "MLflow", shlex.join(["mlbench", "results", "mlflow", f"tracking_uri={uri}"])

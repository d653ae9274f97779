"""What stands below a result card: lines to copy, so they are printed without a frame and unbroken."""

import shlex
from pathlib import Path
from urllib.parse import urlsplit

from mlbench.experiment import run_folders
from mlbench.experiment.provenance import without_credentials
from mlbench.experiment.record import FINISHED, Record

Lines = list[tuple[str, str]]  # label and text


def links(record: Record, *, folder: Path, where: str | None, tracking_uri: str) -> Lines:
    """Return the command that repeats the run, its folder, and where MLflow has it.

    `where` is the id of the MLflow run, None if MLflow could not be reached.
    """
    place = without_credentials(tracking_uri)
    found = [("run again", again(record)), ("files", str(folder))]
    if where is None:
        found.append(("MLflow", f"{place} could not be reached; nothing is lost, this sends it there later:"))
        return [*found, ("", run_folders.results_command("sync", folder.parent))]
    return [*found, ("MLflow run", where), *_opening(place)]


def stored(record: Record, *, folder: Path, tracking_uri: str) -> Lines:
    """Return `links` for a run of the past."""
    own = record.source == "mlbench"  # another suite's run cannot be run again here
    found = [("run again", again(record))] if own else []
    return [*found, ("files", str(folder)), *_opening(without_credentials(tracking_uri))]


def again(record: Record) -> str:
    """Return the command that repeats the run: as it was given, with the seed that was drawn."""
    words = [w for w in shlex.split(record.command) if not w.startswith(("seed=", "force="))]
    words.append(f"seed={record.seed}")
    if record.status in FINISHED:
        words.append("force=true")  # else the stored result would be shown
    return without_credentials(shlex.join(words))


def _opening(uri: str) -> Lines:
    """Return how to look at a store: a server by its address, a database by a server of one's own."""
    if urlsplit(uri).scheme in ("http", "https"):
        return [("MLflow UI", uri)]
    if uri.startswith("databricks"):
        return [("MLflow UI", f"the workspace behind {uri}")]
    return [("MLflow UI", shlex.join(["mlflow", "ui", "--backend-store-uri", uri]))]

"""Whether a prepared data set still is what was prepared. Files are hashed once per file state.

States that were hashed are listed in a hidden file next to the data, so that a check costs nothing until a
file changes.
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from mlbench.config.errors import DataError
from mlbench.datasets import arrow
from mlbench.datasets.arrow import State, state

CHECKED = ".checked.json"  # below the data set's folder: by file name, the state that was hashed and its hash


class Content(NamedTuple):
    """What a data set was found to hold.

    The fields are those of record.WorkerResult.

    - data_hash: identifies manifest and content, for the record.
    - data_rows, data_files: by split, its rows and the SHA-256 of its file.
    - data_inputs: by name, the SHA-256 of the files that it was made from, as in its manifest.
    """

    data_hash: str
    data_rows: dict[str, int]
    data_files: dict[str, str]
    data_inputs: dict[str, str]


def content(folder: Path) -> Content:
    """Check every file of a prepared data set. Raises UserError naming one that is not what was prepared.

    Files are hashed if their state is unknown. Rows are counted in the files.
    """
    manifest = arrow.read_manifest(folder)
    entries = _known(folder)
    checked: dict[str, list[Any]] = {}
    rows = {}
    for name, split in manifest["splits"].items():
        path = folder / split["file"]
        now = state(path)
        if entries.get(split["file"]) != [now, split["sha256"]] and arrow.digest(path) != split["sha256"]:
            raise DataError(
                f"{path} changed after it was prepared",
                hint=f"remove {folder}, then {arrow.preparing(folder)}",
            )
        checked[split["file"]] = [now, split["sha256"]]
        rows[name] = arrow.read_split(folder, name).num_rows
    if checked != entries:
        _remember(folder, checked)
    return Content(
        data_hash=arrow.manifest_hash(folder),
        data_rows=rows,
        data_files={name: split["sha256"] for name, split in manifest["splits"].items()},
        data_inputs={entry["file"]: entry["sha256"] for entry in manifest.get("inputs", [])},
    )


def states(folder: Path) -> dict[str, State]:
    """Return the state of each file of a prepared data set, to see later whether one was changed."""
    splits = arrow.read_manifest(folder)["splits"].values()
    return {split["file"]: state(folder / split["file"]) for split in splits}


def watch(folder: Path) -> dict[str, State]:
    """Return the state of each file. From here on `changed` detects the states that this process opens."""
    for path in [path for path in arrow.OPENED if path.parent == folder.absolute()]:
        del arrow.OPENED[path]
    return states(folder)


def changed(folder: Path, before: dict[str, State]) -> bool:
    """Return whether a file is in another state than `before`, or was opened in another since `watch`.

    The second detects a folder that was exchanged for another while the task read it, and then put back.
    """
    opened = {name: arrow.OPENED.get((folder / name).absolute(), []) for name in before}
    return states(folder) != before or any(state != before[name] for name in opened for state in opened[name])


def _known(folder: Path) -> dict[str, Any]:
    try:
        entries = json.loads((folder / CHECKED).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _remember(folder: Path, checked: dict[str, list[Any]]) -> None:
    """Write the states. A folder that may not be written to is hashed each time."""
    partial = folder / f"{CHECKED}.{os.getpid()}"
    try:
        partial.write_text(json.dumps(checked), "utf-8")
        partial.replace(folder / CHECKED)
    except OSError:
        partial.unlink(missing_ok=True)

"""Use MLflow 3.17 beyond its public interface: its tables, and its UI's saved views."""

import base64
import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

KIND_TAG = "mlflow.experimentKind"  # the UI's mode for an experiment
MODEL_TRAINING = "custom_model_development"
VIEW_TAG = "mlflow.sharedViewState."  # a tag of an experiment, followed by a saved view's name

# MLflow has no query for single tags. It returns whole runs, and sorts all runs again for every page.
_TAG_VALUES = """
SELECT tag.value FROM runs
JOIN tags AS tag ON tag.run_uuid = runs.run_uuid AND tag.key = ?
JOIN tags AS filter ON filter.run_uuid = runs.run_uuid AND filter.key = ? AND filter.value = 'true'
WHERE runs.experiment_id = ?
"""


def tag_values(database: Path, experiment_id: str, *, tag: str, where: str) -> set[str]:
    """Return the values of a tag over an experiment's runs, deleted ones too, whose tag `where` is "true".

    Reads the tables of a SQLite store. Raises sqlite3.Error if they are not those of MLflow 3.17.
    """
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        return {value for (value,) in connection.execute(_TAG_VALUES, (tag, where, experiment_id))}


def view(name: str, state: dict[str, Any], *, created_ms: int) -> str:
    """Return a saved view as the UI stores it: "deflate;" and the base64 of the state's JSON, compressed.

    created_ms: ms since 1970.
    """
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode(), 9)).decode()
    return json.dumps(
        {"name": name, "createdAt": created_ms, "updatedAt": created_ms, "state": f"deflate;{packed}"}
    )

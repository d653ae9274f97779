"""A user's custom files in the place of a task's data set."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mlbench.config.errors import DataError

MANIFEST = {"name": "files", "source": "the user's own files", "licence": "the user's own"}


def together(config: Any, fields: Sequence[str]) -> list[Path]:
    """Return the values of a task's fields. Empty if none is given, UserError if only some are."""
    paths = [getattr(config, field) for field in fields]
    if any(paths) and not all(paths):
        raise DataError(
            f"{' and '.join(f'task.{field}' for field in fields)} must be given together",
            hint="give both, or neither for the task's data set",
        )
    return [path for path in paths if path]


def states(files: Iterable[Path], *, hint: str) -> list[tuple[str, int, int]]:
    """Return path, size and time of change of each file. Raises UserError for a missing one."""
    state = []
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} does not exist", hint=hint)
        state.append((str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns))
    return state


def folder_name(kind: str, *state: Any) -> str:
    """Return the name of the data set's folder. Each state of the files has a different one."""
    return f"{kind}-{hashlib.sha256(repr(state).encode()).hexdigest()[:12]}"

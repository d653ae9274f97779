"""A user's own files in the place of a task's data set."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mlbench.config.errors import UserError

MANIFEST = {"name": "files", "source": "the user's own files", "licence": "the user's own"}


def together(config: Any, fields: Sequence[str]) -> list[Path]:
    """Return the values of a task's fields; empty where none is given, UserError where only some are."""
    paths = [getattr(config, field) for field in fields]
    if any(paths) and not all(paths):
        raise UserError(
            f"{' and '.join(f'task.{field}' for field in fields)} go together",
            hint="give both, or neither for the task's own data set",
        )
    return [path for path in paths if path]


def states(files: Iterable[Path], *, hint: str) -> list[tuple[str, int, int]]:
    """Return path, size and time of change of each file; UserError for one that is not there."""
    state = []
    for file in files:
        if not file.is_file():
            raise UserError(f"there is no file {file}", hint=hint)
        state.append((str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns))
    return state


def folder_name(kind: str, *state: Any) -> str:
    """Return the name of the data set's folder; each state of the files has its own."""
    return f"{kind}-{hashlib.sha256(repr(state).encode()).hexdigest()[:12]}"

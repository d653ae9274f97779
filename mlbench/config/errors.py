"""The one exception whose text is written for the person at the terminal."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlbench

CLOSE = 0.65  # of difflib's ratio: max_time is not max_failures
FEW, MANY = 12, 24  # names that an error lists with a suggestion, and without one


class UserError(Exception):
    """A mistake of the user's that one sentence explains and the hint fixes.

    Commands print it without a traceback and exit with code 2, before any worker starts.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigurationError(UserError):
    """A setting, a plugin or a YAML file that is unknown, invalid or not installed."""


class DataError(UserError):
    """A data set that is missing, damaged or not the one that the run needs."""


class ClusterError(UserError):
    """A machine or cluster that cannot be reached, or is too small."""


class ResultError(UserError):
    """A run, study or submission that is missing, damaged or cannot be compared."""


def comparable(version: str) -> str:
    """Return the Major.Minor of a version: results of one are comparable, and its files can be read."""
    return ".".join(version.split(".")[:2])  # also of a development version, e.g. 0.3.0.dev0


def is_comparable(version: str) -> bool:
    """Whether a version's results are comparable with this one's."""
    return comparable(version) == comparable(mlbench.__version__)


def unreadable(file: Path | str, values: Any, *, hint: str, damage: str = "is damaged") -> ResultError:
    """Return why a file that holds `values` cannot be read: another version wrote it, or its damage."""
    version = values.get("mlbench") if isinstance(values, dict) else None
    if isinstance(version, str) and not is_comparable(version):
        return ResultError(
            f"{file} was written by another version of mlbench ({version})",
            hint=f"read it with mlbench {version}",
        )
    return ResultError(f"{file} {damage}", hint=hint)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest(name: str, allowed: Sequence[str]) -> str:
    """Return the allowed name that an unknown one most likely stands for, or an empty string."""
    longer = [choice for choice in allowed if name and choice.lower().startswith(name.lower())]
    if len(longer) == 1:
        return longer[0]
    lower = {choice.lower(): choice for choice in reversed(allowed)}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=CLOSE)
    return lower[close[0]] if close else ""


def suggest(name: str, allowed: Sequence[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest one, or all that there are."""
    if near := nearest(name, allowed):
        return f": did you mean {near}?" + (f" ({', '.join(allowed)})" if 1 < len(allowed) < FEW else "")
    short = allowed if len(allowed) < FEW else [choice for choice in allowed if "." not in choice]
    if len(short) > MANY:
        like = [choice for choice in short if choice.startswith(name[:3])][:FEW] or short[:FEW]
        return f": choose one of {', '.join(like)}, ... ({len(short)} in all)"
    return f": choose one of {', '.join(short)}" if short else ""

"""Environment variables that mlbench sets for its libraries, and keeps from measured scripts."""

import os
from collections.abc import Mapping

ADDED = "MLBENCH_ADDED"  # variable: the names of those that were set, for processes that inherit them


def add(settings: Mapping[str, str]) -> None:
    """Set those that the environment does not have."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    if new:
        os.environ |= new
        os.environ[ADDED] = " ".join([*os.environ.get(ADDED, "").split(), *new])


def without() -> dict[str, str]:
    """Return the environment without what `add` has set, here or in a process that this one comes from."""
    hidden = {ADDED, *os.environ.get(ADDED, "").split()}
    return {name: value for name, value in os.environ.items() if name not in hidden}

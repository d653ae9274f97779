"""Keeps what goes wrong in the probe from the script."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mlbench.probe import torch_private

LOGGED = 20  # failures of which the trace is kept


class Guard:
    """Makes hooks whose failure ends the watching and never reaches the script.

    - torch: the module, as the script has it.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.compiling = torch_private.compiling(torch)
        self.watching = True
        self.failure: str | None = None  # why it has ended
        self.notes: set[str] = set()  # what was seen
        self.log: list[str] = []  # traces of what went wrong and was kept from the script
        self.at_end: list[Callable[[], object]] = []  # what ends with the watching
        self.until_ready: list[Callable[[], bool]] = []  # hooks that return whether they are set

    def guarded(self, call: Callable[..., Any], *, eager: bool = False) -> Callable[..., None]:
        """Return a hook that does nothing while torch compiles, and ends the watching where it fails.

        eager: it is called where torch never compiles.
        """
        compiling = bool if eager else self.compiling

        def hook(*arguments: Any) -> None:
            if compiling() or not self.watching:
                return
            try:
                call(*arguments)
            except Exception as error:
                self.fail(error)

        return hook

    def fail(self, error: Exception) -> None:
        """End the watching, and keep why."""
        self.watching, self.failure = False, f"{type(error).__name__}: {error}"
        self.notes.add(f"failure {self.failure}")
        self.swallow(error)
        for end in self.at_end:
            with suppress(Exception):
                end()

    def swallow(self, error: BaseException) -> None:
        """Keep the trace of a failure for the run's log."""
        if len(self.log) < LOGGED:
            self.log.append("".join(traceback.format_exception(type(error), error, error.__traceback__)))

    def get_ready(self) -> None:
        """Set those hooks whose part of torch the script has imported by now."""
        self.until_ready = [each for each in self.until_ready if not each()]

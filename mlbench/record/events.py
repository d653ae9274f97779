"""Write and read the event log of a run: one JSON object a line, appended and flushed event by event.

MLflow and every report can be made again from this file. A line has the fields of MLPerf's mllog (time_ms,
event_type, key, value, metadata). A process that dies leaves at most one torn last line, which readers skip.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from mlbench import clock
from mlbench.config.errors import ResultError

NAME = "events.jsonl"
Kind = Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # escapes, text direction


def append(path: Path, key: str, value: Any, *, kind: Kind = "POINT_IN_TIME", **metadata: Any) -> None:
    """Write one event with a single append, so that two processes may write to one log.

    Raises UserError naming the path when the disk is full or the folder is gone.
    """
    event = {
        "time_ms": round(clock.wall() * 1000),
        "event_type": kind,
        "key": key,
        "value": visible(value),
        "metadata": visible(metadata),
    }
    copy(path, event)


def visible(value: Any) -> Any:
    """Return JSON types in which no text holds control characters, which a terminal would obey."""
    if isinstance(value, str):
        return CONTROL.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {visible(name): visible(item) for name, item in value.items()}
    return [visible(item) for item in value] if isinstance(value, list | tuple) else value


def copy(path: Path, event: dict[str, Any]) -> None:
    """Write an event of another log unchanged. Raises as `append` does."""
    line = (json.dumps(event, allow_nan=False, default=str) + "\n").encode()
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a kill or a full disk
            line = b"\n" * torn + line
            written = os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ResultError(
            f"cannot write {path}: {error.strerror}", hint="free space or give another output_root"
        ) from error
    if written != len(line):
        raise ResultError(f"cannot write {path}: the disk is full", hint="free space there")


class LogFollower:
    """Reader of a growing log. Each call returns the new events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def take(self) -> list[dict[str, Any]]:
        """Return the complete events that were appended since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as log:
            log.seek(self._offset)
            block = log.read()
        complete = block[: block.rfind(b"\n") + 1]
        self._offset += len(complete)
        return list(_parse(complete))


def read(path: Path) -> list[dict[str, Any]]:
    """Return all events of a log. A torn line, left by a killed process or a full disk, is skipped."""
    return list(_parse(path.read_bytes()))


def checksum(log: Sequence[dict[str, Any]], end: Any) -> dict[str, Any]:
    """Return the metadata of the `run_result` with the value `end` that follows these events.

    It has the number of events, and the SHA-256 of them and of `end`, without what an import adds to the
    first.
    """
    digest = hashlib.sha256()
    for event in log:
        if event["key"] == "run_configuration":
            start = {name: value for name, value in event["value"].items() if name != "imported"}
            event = event | {"value": start}
        digest.update(json.dumps(event, sort_keys=True).encode())
    digest.update(json.dumps(end, sort_keys=True).encode())
    return {"events": len(log), "sha256": digest.hexdigest()}


def resealed(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the log `after`, an edit of `before`, with a new checksum if that of `before` holds.

    Logs are edited when they enter or leave an archive: credentials and addresses of other machines are
    removed.
    """
    log = list(after)
    for index, event in enumerate(before):
        written = event.get("metadata", {}) if event["key"] == "run_result" else {}
        if "sha256" in written and checksum(before[: written["events"]], event["value"]) == written:
            own = checksum(log[: written["events"]], log[index]["value"])
            log[index] = log[index] | {"metadata": own}
    return log


def opening(path: Path) -> Any:
    """Return the value of a log's `run_configuration`, which comes first, or None if it was not written."""
    with path.open("rb") as log:
        events = (event for line in log for event in _parse(line))
        return next((event.get("value") for event in events if event["key"] == "run_configuration"), None)


def _parse(block: bytes) -> Iterator[dict[str, Any]]:
    for line in block.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # torn, or nested too deeply for an event
            continue
        if isinstance(event, dict) and "key" in event:
            yield event

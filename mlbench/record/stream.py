"""A run's events as lines of its standard output: how a run in a pod reaches the machine that submitted it.

A line is MARK and a JSON object: {"event": EVENT, "number": N} for the N-th line of the event log (from 0),
{"heartbeat": HEARTBEAT}, {"connected": {...}}, {"activity": SENTENCE}, and at last {"end": COUNT}. A log that
is read again from its beginning repeats them, so the events carry their numbers.
"""

import json
from typing import Any

# Environment variables of a run in a pod: it prints such lines; and when it was submitted, s since 1970.
VARIABLE, SUBMITTED = "MLBENCH_EVENT_STREAM", "MLBENCH_SUBMITTED_AT"
MARK = "mlbench-event-stream "


def encode(message: dict[str, Any]) -> str:
    """Return a message as one line."""
    return MARK + json.dumps(message, default=str) + "\n"


def decode(line: str) -> dict[str, Any] | None:
    """Return the message in a line of output; None where it has none that is whole."""
    try:
        message = json.loads(line.partition(MARK)[2])
    except ValueError:
        return None
    return message if isinstance(message, dict) else None

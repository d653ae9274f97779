"""Encode a run's events as lines of its output, from its pod to the machine that submitted it.

A line is MARK and a JSON object. {"event": EVENT, "number": N} is the N-th line of the event log (from 0).
Others are {"heartbeat": HEARTBEAT}, {"connected": {...}}, {"activity": SENTENCE} and {"file": NAME,
"content": PACKED}. The last line is {"end": COUNT}. A log that is read again from its beginning repeats them,
so events have numbers.

A long event is packed. Kubelets keep the last 10 MiB of a container's output, and a run that is cut there
leaves nothing.
"""

import base64
import json
import zlib
from typing import Any

# Environment variables of a run in a pod: that it prints such lines, and when it was submitted (s since
# 1970).
VARIABLE, SUBMITTED = "MLBENCH_EVENT_STREAM", "MLBENCH_SUBMITTED_AT"
MARK = "mlbench-event-stream "
PACKED, LONG = "packed", 1024  # a message of more characters is one of this field
MOST = 2**26  # bytes that are unpacked of one text


def encode(message: dict[str, Any]) -> str:
    """Return a message as one line."""
    text = json.dumps(message, default=str)
    if "event" in message and len(text) > LONG:
        text = json.dumps({PACKED: pack(text.encode())})
    return f"{MARK}{text}\n"


def pack(data: bytes) -> str:
    """Return bytes as short text."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def unpack(text: str) -> bytes:
    """Return the bytes of such a text, MOST at most. Raises ValueError for any other text."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(text), MOST)
    except zlib.error as error:
        raise ValueError(f"not packed: {error}") from error


def decode(line: str) -> dict[str, Any] | None:
    """Return the message in a line of output, or None if it has no whole one."""
    try:
        message = json.loads(line.partition(MARK)[2])
        if isinstance(message, dict) and PACKED in message:
            message = json.loads(unpack(message[PACKED]))
    except (TypeError, ValueError):
        return None
    return message if isinstance(message, dict) else None

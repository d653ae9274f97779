"""What a probe stamps, and how stamps travel: tuples of a kind and its values, moments first.

What they say of steps is worked out where they arrive (`mlbench.script.steps`), not in the script's process.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

Stamp = tuple[Any, ...]

START = 0  # a DataLoader is asked for an iterator
DATA = 1  # it is asked for a batch
DATA_END = 2  # it has answered, or has ended
FORWARD = 3  # a forward pass begins that trains
FORWARD_END = 4  # at, number of the model, rows and tokens that it was given
INFERENCE = 5  # a forward pass begins that does not train
INFERENCE_END = 6  # at, number of the model
BACKWARD = 7  # a backward pass begins; at, whether the last model's first weight has no gradient yet
BACKWARD_END = 8
LAUNCH = 9  # a bucket of gradients is handed to the backend
REDUCED = 10  # launch and end of one bucket
OPTIMIZER = 11  # an optimizer's step begins
STEP = 12  # it ends
REPLAYED = 13  # a CUDA graph that holds a whole step has been replayed; at, rows
MET = 14  # a collective was waited for: its launch, begin and end of the wait; which, as a sum of these:
# Each rank waits for others; on a stream of its own; not each for all others; times its place in a list.
COMPARED, ASIDE, PARTLY, WHICH = 1, 2, 4, 8
COMPILED = 15  # torch.compile has made code; at, s that it took
SAVED = 16  # torch.save has written; at, s that it took
OBSERVED = 17  # the step that goes on is observed for its FLOP, or comes after such a step
LAST = OBSERVED

MOMENTS = (1,) * REDUCED + (2, 1, 1, 1, 3, 1, 1, 1)  # how many of a kind's values are moments
OTHERS = {  # how many follow them
    FORWARD_END: 3,
    INFERENCE_END: 1,
    BACKWARD: 1,
    REPLAYED: 1,
    MET: 1,
    COMPILED: 1,
    SAVED: 1,
}
VALUES = tuple(count + OTHERS.get(kind, 0) for kind, count in enumerate(MOMENTS))


def encode(stamps: Iterable[Stamp]) -> dict[str, str]:
    """Return stamps as two columns of text, for JSON: kinds, one byte each, and values, doubles."""
    kinds, values = bytearray(), array("d")
    for stamp in stamps:
        kinds.append(stamp[0])
        values.extend(stamp[1:])
    return {"kinds": b64encode(kinds).decode(), "values": b64encode(values.tobytes()).decode()}


def decode(columns: Any) -> list[Stamp]:
    """Return the stamps of two columns; ValueError where they are none."""
    kinds, values = b64decode(columns["kinds"], validate=True), array("d")
    values.frombytes(b64decode(columns["values"], validate=True))
    if any(kind > LAST for kind in kinds) or sum(VALUES[kind] for kind in kinds) != len(values):
        raise ValueError("columns of stamps that do not belong together")
    stamps, at = list[Stamp](), 0
    for kind in kinds:
        end = at + VALUES[kind]
        stamps.append((kind, *values[at:end]))
        at = end
    return stamps

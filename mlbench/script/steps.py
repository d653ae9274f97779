"""From the stamps of a foreign training loop to its steps."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from mlbench.training.stamps import busy


class Step(NamedTuple):
    """One optimizer step of one rank; s, moments on that rank's clock.

    Its durations add up from `begin`, where the step before ended, to `end`.

    - gap: from `begin` to the first forward pass; in `validation`, `data_wait`, `metrics` and `optimizer`.
    - metrics: all that the script does beside the other parts.
    - transfer: from the launch of the last bucket of gradients until all are reduced.
    - launched: when that was; None where no launch was seen.
    - rows: the first dimension of what a model was given, of several the greatest; summed over its calls.
    """

    begin: float
    end: float
    gap: float
    validation: float
    data_wait: float
    forward: float
    loss: float
    backward: float
    transfer: float
    optimizer: float
    metrics: float
    overlapped: float
    launched: float | None
    rows: int


# The part that the time before a stamp belongs to.
PART = {
    "start": "metrics",
    "data": "metrics",
    "data_end": "data_wait",
    "forward": "metrics",
    "forward_end": "forward",
    "inference_end": "forward",
    "loss_end": "loss",
    "backward_end": "backward",
    "optimizer_end": "optimizer",
    "step": "optimizer",
}


def assemble(stamps: Iterable[tuple[str, Any]], *, begin: float, rows: int) -> Step:
    """Return the step of these stamps, the last of which is "step"; "launch" and "reduced" lie among them.

    A stamp "reduced" has the moments of launch and end of one bucket; the last launch before another stamp
    ends a backward pass. "validation_end" makes all time since the begin a validation, and so does the
    "start" of a DataLoader's iterator between it and the first forward pass.
    """
    parts = dict.fromkeys(("validation", *PART.values(), "transfer"), 0.0)
    previous, gap, launch, launched, hidden = begin, None, None, None, 0.0
    buckets: list[tuple[float, float]] = []
    backward_ended = stepping = False
    for kind, at in stamps:
        if kind == "launch":
            launch = max(at, previous)
            continue
        if kind == "reduced":
            buckets.append(at)
            continue
        if kind == "backward_end" and launch is not None:
            continue  # the launches of its buckets say when its gradients were there
        if launch is not None:
            ended = max([launch, *(min(end, at) for _, end in buckets)])
            parts["backward"] += launch - previous
            parts["transfer"] += ended - launch
            hidden += busy(sorted(buckets), until=launch)
            previous, launched = ended, launch if buckets else None
            launch, buckets, backward_ended = None, [], True
        at = max(at, previous)  # those of two streams of a GPU may be some microseconds out of order
        if kind == "validation_end" or kind == "start" and parts["validation"] and gap is None:
            parts = dict.fromkeys(parts, 0.0) | {"validation": at - begin}
        elif kind == "forward" and gap is None:
            gap = at - begin
            parts["metrics"] += at - previous
        elif kind == "optimizer":
            before = "backward" if gap is not None else "metrics"  # no forward pass was seen
            parts["optimizer" if backward_ended else before] += at - previous
        elif kind == "forward" and stepping and backward_ended:
            parts["optimizer"] += at - previous  # between two calls of its closure
        else:
            parts[PART[kind]] += at - previous
            backward_ended = kind == "backward_end" or (backward_ended and kind != "forward_end")
        stepping = kind == "optimizer" or (stepping and kind != "optimizer_end")
        previous = at
    return Step(
        begin=begin,
        end=previous,
        gap=gap or 0.0,
        overlapped=hidden,
        launched=launched,
        rows=rows,
        **parts,
    )

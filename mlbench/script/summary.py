"""What a measured script's run says in words: why it failed, and what of it could not be seen."""

from collections.abc import Sequence
from typing import Any

from mlbench.script.collector import Collector

UNIT = "rows"  # of the first dimension of what the model is given
NOTHING = (
    "no optimizer step of PyTorch was seen in all ranks, so nothing was measured but the time of the command"
)
MISSING = {
    "forward": "forward, loss and backward were not seen: the script calls no torch.nn.Module with weights",
    "apart": "forward, loss and backward were not seen: the script trains in a thread beside its first",
    "graph": "steps that a CUDA graph replays count as optimizer: no hook sees their forward and backward",
    "fused": "backward, optimizer and metrics were not told apart: the optimizer steps within backward",
    "data": "the wait for data was not seen: the script iterates no DataLoader of torch in its main thread",
    "buckets": "wait, transfer and late ranks were not seen: no DistributedDataParallel spans all ranks",
    "own_hook": "wait, transfer and late ranks were not seen: the script has a communication hook of its own",
    "goal": "the script's goal is not the record's: task.metric= was given, or it came long after a step",
    "rows": "rows were not seen: the model is given no tensor, and no list or dict that begins with one",
    "validated": "forward passes without gradients before most steps count as validations, outside the steps",
    "cut": "a rank ended without sending its last steps: os._exit, or a broken connection",
    "uneven": "ranks made different numbers of steps: those beyond the fewest were not measured",
}
REFUSED = "more processes trained than the run has ranks, as after a restart, and were not measured"
UNEVEN = 0.01  # of the steps, which a rank's last message may lack


def coverage(collector: Collector) -> dict[str, Any]:
    """Return the number of steps of rank 0, and a sentence for each thing that could not be seen."""
    steps = sum(times[0].steps for _, times in collector.intervals)
    ranks = collector.ranks.values()
    notes = set.intersection(*(set(rank.notes) for rank in ranks)) if steps else set()
    lacking = [name for name in ("forward", "data") if name not in notes]
    if collector.world > 1 and "buckets" not in notes:
        lacking.append("own_hook" if any("own_hook" in rank.notes for rank in ranks) else "buckets")
    if "forward" in lacking and any("apart" in rank.notes for rank in ranks):
        lacking[0] = "apart"
    if "forward" in notes and not any(times[0].samples for _, times in collector.intervals):
        lacking.append("rows")
    lacking += [name for name in ("graph", "fused") if name in notes]
    if collector.late:
        lacking.append("goal")
    if not collector.reached and not all(rank.last for rank in ranks):
        lacking.append("cut")
    if not collector.reached and max((len(rank.steps) for rank in ranks), default=0) > UNEVEN * steps:
        lacking.append("uneven")
    if 2 * collector.validated > steps:
        lacking.append("validated")
    warnings = [MISSING[name] for name in lacking] if steps else []
    if collector.metric != "none" and not any(each["metrics"] for each, _ in collector.intervals):
        warnings.append(f"no value of {collector.metric} was seen, neither printed nor given to validation()")
    if collector.refused:
        warnings.append(f"{collector.refused} {REFUSED}")
    failures = {note for rank in ranks for note in rank.notes if note.startswith("failure ")}
    warnings += [f"the probe stopped: {note.removeprefix('failure ')}" for note in sorted(failures)]
    return {"steps": steps, "warnings": warnings}


def failure(codes: Sequence[int | None], lines: Sequence[str], stall_s: float) -> str | None:
    """Return why a run has failed; None where every rank ended well.

    - codes: exit codes, None for a rank that had to be ended. lines: the last that each rank printed.
    """
    failed = [rank for rank, code in enumerate(codes) if code]
    if failed:
        rank = failed[0]
        said = f": {lines[rank]}" if lines[rank] else ""
        who = f"rank {', '.join(map(str, failed))} of the script" if len(codes) > 1 else "the script"
        return f"{who} ended with exit code {codes[rank]}{said}"
    if None in codes:
        ranks = ", ".join(str(rank) for rank, code in enumerate(codes) if code is None)
        who = f"rank {ranks}" if len(codes) > 1 else "the script"
        return f"{who} hung: no step and no line for {stall_s:g} s (task.stall_s)"
    return None

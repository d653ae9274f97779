"""What a measured script's run says in words: why it failed, and what of it could not be seen."""

import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from mlbench.probe import stamps
from mlbench.probe.flop_counter import BEFORE
from mlbench.script import memory_kills
from mlbench.script.collector import Collector

UNIT = "rows"  # of the first dimension of what the model is given
NOTHING = "no optimizer step of PyTorch was seen in all ranks, so only the time of the command was measured"
UNSEEN = (
    "no Python process of the command could be watched, so only its time was measured: PYTHONPATH was "
    "replaced (write PYTHONPATH=lib:$PYTHONPATH), python was started with -E, -I or -S, or is "
    "older than Python 3.9"
)
MISSING = {
    "forward": "forward, loss and backward were not seen: the script calls no torch.nn.Module with weights",
    "loss": "forward and loss were not seen: no torch.nn.Module with weights is called, or its forward() is",
    "threads": "the script trains in several threads, of which one was measured",
    "graph": "steps that a CUDA graph replays count as optimizer: no hook sees their forward and backward",
    "fused": "backward, optimizer and metrics were not separated: the optimizer steps within backward",
    "passes": "steps are backward passes: no optimizer of torch.optim steps; updates count as other",
    "data": "the wait for data was not seen: the thread that trains iterates no DataLoader of torch",
    "buckets": "wait, transfer and late ranks were not seen: no DistributedDataParallel spans all ranks, and "
    "no collective of torch.distributed was seen that does",
    "own_hook": "wait, transfer and late ranks were not seen: the script has a custom communication hook",
    "goal": "the script's goal is not the record's: task.metric= was given, or it came long after a step",
    "rows": "rows were not seen: the model is given no tensor, and no list or dict that begins with one",
    "uncounted": "rows were not seen in every step: what the model is given has no size that can be read",
    "outer_rank": "RANK and WORLD_SIZE were set before the command and not by it: measured as one worker",
    "validated": "forward passes without gradients before most steps count as validations, outside the steps",
    "cut": "a rank ended without sending its last steps: os._exit, or a broken connection",
    "uneven": "ranks made different numbers of steps: those beyond the fewest were not measured",
}
SAID = {"failure ": "the probe stopped: ", "lacks ": "this PyTorch lacks what the probe needs to see its "}
REFUSED = "more processes trained than the run has ranks, as side by side or restarted, and were not measured"
LENGTHS = 0.25  # by which the mean length of rows may differ from that in the observed step
UNEVEN = 0.01  # of the steps, which a rank's last message may lack


DOING: dict[int | None, str] = {  # after a rank's last stamp
    stamps.START: "waits for its DataLoader",
    stamps.DATA: "waits for data",
    stamps.DATA_END: "has got a batch, or has ended its DataLoader",
    stamps.FORWARD: "is within forward",
    stamps.FORWARD_END: "is after forward",
    stamps.INFERENCE: "is within a forward pass without gradients",
    stamps.INFERENCE_END: "is after a forward pass without gradients",
    stamps.BACKWARD: "is within backward",
    stamps.BACKWARD_END: "is after backward",
    stamps.LAUNCH: "waits for the all-reduce of its gradients",
    stamps.REDUCED: "is within backward",
    stamps.OPTIMIZER: "is within optimizer.step()",
}


def nothing(collector: Collector) -> str:
    """Return why a command that ended well has no record."""
    return NOTHING if collector.announced else UNSEEN


def coverage(collector: Collector) -> dict[str, Any]:
    """Return the number of steps of rank 0, and a sentence for each thing that could not be seen."""
    steps = sum(times[0].steps for _, times in collector.intervals)
    ranks = collector.ranks.values()
    notes = set.intersection(*(set(rank.notes) for rank in ranks)) if steps else set()
    lacking = [name for name in ("forward", "data") if name not in notes]
    if collector.world > 1 and not {"buckets", "collectives"} & notes:
        lacking.append("own_hook" if any("own_hook" in rank.notes for rank in ranks) else "buckets")
    if "forward" in lacking and any(times[0].phases["backward"] for _, times in collector.intervals):
        lacking[0] = "loss"
    if {"forward", "uncounted"} & notes == {"forward"} and not any(
        times[0].samples for _, times in collector.intervals
    ):
        lacking.append("rows")
    lacking += [name for name in ("graph", "fused") if name in notes]
    lacking += ["passes"] if any(rank.splitter.by_passes for rank in ranks) else []
    told = {note for rank in ranks for note in rank.notes}
    lacking += [
        name for name in ("uncounted", "outer_rank", "threads") if name in told and name not in lacking
    ]
    if collector.late:
        lacking.append("goal")
    if not collector.reached and not all(rank.last for rank in ranks):
        lacking.append("cut")
    if not collector.reached and max((len(rank.steps) for rank in ranks), default=0) > UNEVEN * steps:
        lacking.append("uneven")
    if 2 * collector.validated > steps:
        lacking.append("validated")
    warnings = [MISSING[name] for name in lacking] if steps else []
    warnings += collector.doubts
    if collector.metric != "none" and not any(each["metrics"] for each, _ in collector.intervals):
        warnings.append(f"no value of {collector.metric} was seen, neither printed nor given to validation()")
    if collector.refused:
        warnings.append(f"{collector.refused} {REFUSED}")
    for prefix, sentence in SAID.items():
        warnings += [sentence + note[len(prefix) :] for note in sorted(told) if note.startswith(prefix)]
    return {"steps": steps, "warnings": warnings}


class FlopCount(NamedTuple):
    """FLOP of training on a row, or why they are unknown, the precision of most, and on how many devices."""

    flops_per_sample: float | None = None
    lacking: str | None = None
    precision: str = ""
    devices: int = 0


def flop_count(collector: Collector) -> FlopCount:
    """Return what the observed steps of all ranks took; rows of other lengths count by their tokens."""
    ranks = [rank for _, rank in sorted(collector.ranks.items())][: collector.world]
    times = [each for _, every in collector.intervals for each in every]
    if not times:
        return FlopCount()
    if any(rank.splitter.by_passes for rank in ranks):
        return FlopCount(lacking="no optimizer of torch.optim steps")
    if any("graph" in rank.notes for rank in ranks):
        return FlopCount(lacking="a CUDA graph replays its steps")
    found = [rank.flop for rank in ranks if rank.flop]
    if len(found) < len(ranks):
        few = min(collector.made(rank) for rank in ranks) <= BEFORE + 1
        return FlopCount(
            lacking="too few steps" if few else "its optimizers change, or it ended without the end of a step"
        )
    for rank, each in zip(ranks, found, strict=True):
        if "why" in each or each["inference"] and rank.interrupted:
            return FlopCount(lacking=each.get("why", "a validation is between all steps that were observed"))
    flops = Counter[str]()
    for each in found:
        flops.update(each["flops"])
    rows, tokens = (sum(each[name] for each in found) for name in ("rows", "tokens"))
    all_rows, all_tokens = sum(each.samples for each in times), sum(each.tokens for each in times)
    scale = all_tokens / all_rows * rows / tokens if tokens and all_rows else 1.0
    if abs(scale - 1) > LENGTHS:
        return FlopCount(lacking=f"rows have {scale:.2f} times the tokens that they had in the observed step")
    (precision, _), devices = flops.most_common(1)[0], sum(each["devices"] for each in found)
    return FlopCount(flops.total() / rows * scale, None, precision, devices)


def standstill(collector: Collector) -> str:
    """Return where each rank is, of a run that hangs; ranks that are alike together."""
    places: dict[str, list[str]] = {}
    for number, rank in sorted(collector.ranks.items()):
        made = collector.made(rank)
        doing = "has ended" if rank.last else DOING.get(rank.splitter.doing, "is between two")
        waits = doing.startswith("waits")
        text = f"{doing} in step {made + 1}" if waits else f"has made {made} steps, and {doing}"
        places.setdefault(text, []).append(str(number))
    named = (
        f"rank {ranks[0]} {text}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}: {text}"
        for text, ranks in places.items()
    )
    return "; ".join(named)


def killed(error: str | None, before: int) -> str | None:
    """Return a failure with the likely cause of a SIGKILL, if the kernel's counter has risen."""
    kills = memory_kills.count() - before
    if error is None or "SIGKILL" not in error or kills < 1:
        return error
    return f"{error} (probably out of memory: the kernel killed {kills} meanwhile)"


def failure(codes: Sequence[int | None], lines: Sequence[str], stall_s: float, where: str = "") -> str | None:
    """Return why a run has failed; None where every rank ended well.

    - codes: exit codes, None for a rank that had to be ended. lines: why, in what each rank printed.
    - where: each rank is, of a run that hangs.
    """
    failed = [rank for rank, code in enumerate(codes) if code]
    if failed:
        rank = failed[0]
        code = codes[rank] or 0
        killed = f" ({signal.Signals(code - 128).name})" if code - 128 in set(signal.Signals) else ""
        said = f": {lines[rank]}" if lines[rank] else ""
        who = f"rank {', '.join(map(str, failed))} of the script" if len(codes) > 1 else "the script"
        return f"{who} ended with exit code {code}{killed}{said}"
    if None in codes:
        ranks = ", ".join(str(rank) for rank, code in enumerate(codes) if code is None)
        who = f"rank {ranks}" if len(codes) > 1 else "the script"
        return f"{who} hung: no step and no output for {stall_s:g} s (task.stall_s){where and f'; {where}'}"
    return None

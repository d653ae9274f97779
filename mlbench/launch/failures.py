"""From what Ray, torch and the kernel raise to the one sentence that a person needs."""

import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from mlbench.config.errors import UserError
from mlbench.record.format import last_line

MISSING_RANK_S = 10  # s that a rank has to answer before it is called missing
# Ray's memory monitor, CUDA and malloc, not Ray's general guess about "OOM killer due to high memory usage".
OUT_OF_MEMORY = re.compile(r"memory usage threshold|running low on memory|out of memory|not allocate memory")

# CPython's Modules/faulthandler.c (3.11), which Ray and torch's elastic agent enable in their workers
FATAL = re.compile(r"^Fatal Python error: (.+)", re.MULTILINE)


class WorkersFailed(Exception):
    """The workers did not finish. The text names the failed rank and its error."""


def root_cause(error: BaseException, logs: Sequence[str] = ()) -> Exception:
    """Return a UserError or a WorkersFailed for what Ray's trainer raised. `logs`: each rank's log."""
    while (inner := getattr(error, "controller_failure", None) or getattr(error, "cause", None)) is not None:
        error = inner
    if isinstance(error, (UserError, WorkersFailed)):
        return error
    failures = getattr(error, "worker_failures", None)
    return cause_of_ranks(failures, logs) if failures else WorkersFailed(_of_ray(error))


def cause_of_ranks(failures: Mapping[int, Any], logs: Sequence[str]) -> Exception:
    """Return a UserError or a WorkersFailed for what each rank that failed raised."""
    causes = {rank: getattr(failures[rank], "cause", None) or failures[rank] for rank in sorted(failures)}
    for cause in causes.values():
        if isinstance(cause, UserError):
            return cause
    starved = [rank for rank, cause in causes.items() if OUT_OF_MEMORY.search(_text(cause))]
    if starved:
        return WorkersFailed(f"rank {_list(starved)} ran out of memory: use fewer workers or a smaller batch")
    died = [rank for rank, cause in causes.items() if hasattr(cause, "health_check_failure")]
    if died:  # the error of the others, a broken connection, only follows from it
        crashes = {rank: crash for rank in died if (crash := _crash(rank, logs))}
        first = next(iter(crashes), died[0])
        why = crashes.get(first, "killed, or crashed")
        return WorkersFailed(f"rank {_list(died)} died: {why}{_log(first, logs)}")
    for cause in causes.values():  # the lowest rank has heard of the others first
        if isinstance(cause, WorkersFailed):
            return cause
    reasons = [f"rank {rank}: {_reason(cause)}" for rank, cause in causes.items()]
    return WorkersFailed("; ".join(reasons) + _log(min(causes), logs))


def name_missing_rank(error: Exception, worker: Any) -> Exception:
    """Return the error with the ranks that no longer answer, if it came from a collective or a report."""
    import torch.distributed as dist

    kinds: tuple[type[Exception], ...] = (RuntimeError, dist.DistError)
    if "ray" in sys.modules:  # not with launcher=torchrun
        kinds += (sys.modules["ray"].exceptions.RayError,)
    if worker.world_size == 1 or not isinstance(error, kinds):
        return error
    try:
        dist.monitored_barrier(
            group=worker.control, timeout=timedelta(seconds=MISSING_RANK_S), wait_all_ranks=True
        )
    except RuntimeError as answer:
        ranks = missing_ranks(str(answer))
        if ranks:
            return WorkersFailed(
                f"a collective was stuck: rank {ranks} cannot be reached any more (frozen, or its network is "
                "down)"
            )
    return error


def missing_ranks(answer: str) -> str | None:
    """Return the ranks that torch's monitored barrier names, e.g. "1, 2", or None if it names none.

    Rank 0 checks all others. Another rank only sees that rank 0 did not answer. Rank 0 may be dead, or gone
    because it found another rank missing, which its error then names.
    """
    match = re.search(r"Ranks? ([\d, ]+) failed to pass", answer)
    if match:
        return match[1].strip()
    return "0" if re.search(r"(?:from|to) rank 0\b", answer) else None


def source_line(error: BaseException) -> str:
    """Return the innermost line of code outside torch that raised. A traceback does not travel, notes do."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/site-packages/torch/" not in frame.filename] or frames
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def _reason(error: BaseException) -> str:
    """Return what a worker raised, e.g. KeyError: 'lr' (model.py, line 3)."""
    location = f" ({', '.join(notes)})" if (notes := getattr(error, "__notes__", [])) else ""
    name, line = type(error).__name__, last_line(_text(error))
    return f"{line if name in (line, line.partition(':')[0]) else f'{name}: {line}'}{location}"


def _crash(rank: int, logs: Sequence[str]) -> str | None:
    """Return what ended a rank by Python's faulthandler in its log, e.g. "Segmentation fault"."""
    with suppress(IndexError, OSError):
        found = FATAL.findall(Path(logs[rank]).read_text(errors="replace"))
        return found[-1] if found else None
    return None


def _log(rank: int, logs: Sequence[str]) -> str:
    return f". Log of rank {rank}: {logs[rank]}" if rank < len(logs) else ""


def _of_ray(error: BaseException) -> str:
    text = _text(error)
    name = type(error).__name__
    if OUT_OF_MEMORY.search(text) or name == "OutOfMemoryError":
        return "Ray ended the run because the node is out of memory: use fewer workers or a smaller batch"
    if "creation task" in text:  # the process never ran: what its start raised is in the last line
        return last_line(_text(error))
    if name in ("ActorDiedError", "ActorUnavailableError", "RayActorError"):
        return "the process that controls the workers has died (killed, or out of memory)"
    if name == "WorkerGroupStartupTimeoutError":
        return "the cluster had no room for the workers in time: other runs use it, or nodes have left it"
    if name == "WorkerGroupStartupFailedError":
        return "a worker died while the workers were started (killed, or out of memory)"
    return last_line(_text(error))


def _text(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def _list(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))

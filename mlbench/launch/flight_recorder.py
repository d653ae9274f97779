"""Name the rank that a stuck collective waited for, from the dumps of torch's flight recorder.

torch keeps the last collectives of each rank in memory, and writes them to a file when NCCL's watchdog gives
up (torch 2.13, torch/csrc/distributed/c10d/FlightRecorder.hpp, format 2.10).
"""

import io
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

SUFFIX = ".trace"  # of a dump next to its rank's log
COLLECTIVES = 2000  # that a rank keeps; torch needs some 5 us for each (its documentation, 2026)
LONGEST_BYTES = 2**26  # of a dump that is read
NEEDED = {"process_group", "collective_seq_id"}  # of each entry; another format of torch may lack them


class Entry(dict[str, Any]):
    """One collective of a rank as torch wrote it."""

    @property
    def call(self) -> str:
        """What was called on which sizes, e.g. nccl:all_reduce of [[4]]."""
        return f"{self.get('profiling_name', '?')} of {self.get('input_sizes')}"

    @property
    def place(self) -> str:
        """The innermost line outside torch, e.g. " in train.py, line 7", or nothing without frames."""
        frames = [f for f in self.get("frames") or () if "/torch/" not in f["filename"]]
        return f" in {frames[0]['filename']}, line {frames[0]['line']}" if frames else ""


class _PlainUnpickler(pickle.Unpickler):
    """Reads what torch writes, numbers and texts in lists, tuples and dicts, and calls nothing."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"a dump has no {module}.{name}")


def variables(log: str) -> dict[str, str]:
    """Return the variables by which NCCL's process groups dump next to a rank's log; torch adds the rank."""
    names = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    return dict(zip(names, (str(COLLECTIVES), "1", log + SUFFIX), strict=True))


def read(path: Path) -> dict[str, Any] | None:
    """Return a rank's dump, or None if there is none or it has another format."""
    try:
        if path.stat().st_size > LONGEST_BYTES:
            return None
        dump = _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
        return dump if all(entry.keys() >= NEEDED for entry in dump["entries"]) else None
    except Exception:  # a torn or foreign file: pickle raises any type
        return None


def first_cause(dumps: Mapping[int, Mapping[str, Any]], ranks: int) -> str | None:
    """Return which of `ranks` ranks kept the others waiting, by the dumps of those that have one.

    That is a rank that began fewer collectives of the group of all ranks, one that called another collective
    than most, or one without a dump. None if there is no such rank: then the network is the cause.
    """
    last = {rank: entry for rank, dump in dumps.items() if (entry := _last(dump))}
    if not last:
        return None
    silent = [rank for rank in range(ranks) if rank not in dumps]
    if silent:
        return f"NCCL waited for rank {_list(silent)}, which had stopped answering"
    counts = {rank: entry["collective_seq_id"] for rank, entry in last.items()}
    counts |= dict.fromkeys([rank for rank in range(ranks) if rank not in counts], 0)
    most = max(counts.values())
    behind = [rank for rank, count in counts.items() if count < most]
    if behind:
        ahead = next(entry for entry in last.values() if entry["collective_seq_id"] == most)
        where = last[behind[0]].place if behind[0] in last else ""
        after = f"; its last was collective {counts[behind[0]]}{where}" if where else ""
        began = f"which did not begin collective {most} ({ahead.call}{ahead.place})"
        return f"NCCL waited for rank {_list(behind)}, {began}{after}"
    calls = Counter(entry.call for entry in last.values())
    usual, _ = calls.most_common(1)[0]
    others = [rank for rank, entry in last.items() if entry.call != usual]
    if not others:
        return None
    other = last[others[0]]
    called = f"rank {_list(others)} {other.call}{other.place}, the others {usual}"
    return f"the ranks called different collectives: {called}"


def _last(dump: Mapping[str, Any]) -> Entry | None:
    """Return the last collective of the group of all ranks, torch's number 0, that a rank began."""
    of_all = [
        entry for entry in dump["entries"] if entry["process_group"][0] == "0" and not entry.get("is_p2p")
    ]
    return Entry(max(of_all, key=lambda entry: entry["collective_seq_id"])) if of_all else None


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))

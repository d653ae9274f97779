"""Bring the logs of a failed run's ranks next to its event log, and find the first cause in them."""

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mlbench.launch import flight_recorder
from mlbench.launch.failures import WorkersFailed

LINES = 200  # of a rank's log on another machine that are brought home
FETCH_S = 20.0  # s that this may take: the nodes of a failed run may be gone
# torch 2.13, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: how far a rank had got when NCCL was stuck
ENQUEUED = re.compile(r"PG ID 0 .*last enqueued work: (\d+)")


def kept(logs: Sequence[str], folder: Path) -> list[str]:
    """Return the path of each rank's log, given as "PATH on HOST", after the run.

    Ray's files go with the run's Ray, and pods with theirs. So a log on this machine is copied next to the
    event log, with the rank's dump of the flight recorder. Of another machine's log the last LINES are.
    """
    places, elsewhere = list(logs), dict[int, str]()
    for rank, log in enumerate(logs):
        path, place = log.partition(" on ")[0], folder / f"rank_{rank}.log"
        try:
            shutil.copyfile(path, place)
        except OSError:  # it is on another machine, or the disk is full
            elsewhere[rank] = log
            continue
        places[rank] = str(place)
        with suppress(OSError):
            shutil.copyfile(_dump(path, rank), place.with_suffix(flight_recorder.SUFFIX))
    with suppress(Exception):  # Ray is ending, and whatever it raises does not change how the run ended
        for rank, (text, dump) in _fetched(elsewhere).items():
            place = folder / f"rank_{rank}.log"
            place.write_text(text)
            places[rank] = str(place)
            if dump:
                place.with_suffix(flight_recorder.SUFFIX).write_bytes(dump)
    return places


def _fetched(logs: Mapping[int, str]) -> dict[int, tuple[str, bytes]]:
    """Return the last lines of logs and the dumps by rank, from each node that answers."""
    if not logs:
        return {}
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    read, ranks = ray.remote(num_cpus=0, max_retries=0)(_tail), {}
    for rank, log in logs.items():
        path, _, host = log.partition(" on ")
        if host in nodes:
            strategy = NodeAffinitySchedulingStrategy(nodes[host], soft=False)
            ranks[read.options(scheduling_strategy=strategy).remote(path, rank)] = rank
    done, _ = ray.wait(list(ranks), num_returns=len(ranks), timeout=FETCH_S)
    texts = {}
    for answer in done:
        with suppress(Exception):  # of a node that went meanwhile
            texts[ranks[answer]] = ray.get(answer)
    return texts


def _tail(path: str, rank: int) -> tuple[str, bytes]:
    dump = _dump(path, rank)
    with open(path, errors="replace") as file:
        return "".join(file.readlines()[-LINES:]), dump.read_bytes() if dump.exists() else b""


def _dump(path: str, rank: int) -> Path:
    return Path(f"{path}{flight_recorder.SUFFIX}{rank}")  # torch adds the rank to the name that it is given


def named(cause: Exception, places: Sequence[str]) -> Exception:
    """Return a failure of workers with the ranks for which NCCL waited, if that is known."""
    first = first_cause(places) if isinstance(cause, WorkersFailed) else None
    return WorkersFailed(f"{first}; {cause}") if first else cause


def first_cause(places: Sequence[str]) -> str | None:
    """Return which ranks NCCL waited for when it was stuck: those that began less, or wrote nothing.

    The flight recorder's dumps come first. The logs have no names of collectives.
    """
    found = {rank: Path(place).with_suffix(flight_recorder.SUFFIX) for rank, place in enumerate(places)}
    dumps = {rank: dump for rank, path in found.items() if (dump := flight_recorder.read(path))}
    if dumps:
        return flight_recorder.first_cause(dumps, len(places))
    counts: dict[int, int] = {}
    for rank, place in enumerate(places):
        with suppress(OSError):
            found = ENQUEUED.findall(Path(place).read_text(errors="replace"))
            counts |= {rank: int(found[-1])} if found else {}
    if not counts:
        return None
    silent = [rank for rank in range(len(places)) if rank not in counts]
    behind = [rank for rank, count in counts.items() if count < max(counts.values())]
    if silent:
        return f"NCCL waited for rank {', '.join(map(str, silent))}, which had stopped answering"
    if behind:
        names = ", ".join(map(str, behind))
        return f"NCCL waited for rank {names}, which began fewer collectives than the others"
    return None

"""Start the workers on this machine with torch's elastic agent (the program behind torchrun), without Ray.

The agent is a separate process. It imports torch once, while the command composes its experiment, and then
forks the workers. They meet by the environment that it gives them (RANK, MASTER_ADDR, ...). What they report
goes into the event log by rank 0.
"""

import faulthandler
import json
import os
import pickle
import platform
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from mlbench import clock
from mlbench.clusters import node, placement, reaper
from mlbench.clusters.connection import Connection
from mlbench.config import plugins
from mlbench.config.experiment import Experiment
from mlbench.launch import process_group, rank_logs
from mlbench.launch.failures import WorkersFailed, cause_of_ranks
from mlbench.launch.report_log import TRACES, ReportLog, save_traces
from mlbench.launch.worker_process import RankContext, WorkerSpec, train_loop_per_worker
from mlbench.record import events, temporary_folder
from mlbench.script import child

LOOPBACK = "127.0.0.1"
POLL_S = 1.0  # s between two looks at the agent
ENDED = "ended"  # a rank's file: not empty once it has finished, or the agent has ended it
DIED = "died.json"  # the agent's list of ranks that ended without an exception


class RankDied(Exception):
    """A rank's process ended without an exception."""

    health_check_failure = True  # as Ray Train marks a worker that died


def connection(experiment: Experiment) -> Connection:
    """Return what the workers get of this machine. Raises UserError if they do not fit."""
    gpus = placement.gpus(experiment)
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        gpus = min(gpus, sum(name.strip() not in ("", "-1") for name in visible.split(",")))
    resources = {"CPU": float(node.usable_cpus()), "GPU": float(gpus)}
    shares = placement.worker_resources(experiment, [resources])
    return Connection(**vars(shares), host=LOOPBACK, job_id="", node_ids=[])


@contextmanager
def agent() -> Iterator[tuple[child.Child, Path]]:
    """Start an agent, which imports torch and waits for its WorkerSpec. Yield it and its folder.

    The folder takes the temporary files of torch, which leaves some, and of the workers.
    A block within this block gets the same one.
    """
    if _agents:
        yield _agents[0]
        return
    reaper.reap_if_any()
    with temporary_folder.folder() as scratch:
        process = child.Child(
            [sys.executable, "-m", "mlbench.launch.torchrun", str(scratch)],
            cwd=os.getcwd(),
            variables=reaper.environment(scratch),
            output=child.ScriptOutput(None),
            stdin=subprocess.PIPE,
        )
        _agents.append((process, scratch))
        try:
            yield process, scratch
        finally:
            _agents.clear()
            process.end()


_agents: list[tuple[child.Child, Path]] = []  # this process's, at most one


def run_workers(spec: WorkerSpec, folder: Path) -> None:
    """Train until the workers end. Raise UserError or WorkersFailed in one sentence if they fail."""
    with agent() as (process, scratch):
        assert process.process.stdin is not None
        with suppress(BrokenPipeError), process.process.stdin as stream:
            stream.write(pickle.dumps(spec))
        while (code := process.wait(POLL_S)) is None:
            pass
        if code:
            process.finish()
            raise _failure(scratch, folder, f"exit code {code}: {process.output.cause()}")


def _failure(scratch: Path, folder: Path, said: str) -> Exception:
    """Return the sentence for what the ranks of an agent that has failed left in its folder."""
    failures: dict[int, Exception] = {}
    with suppress(FileNotFoundError):
        failures |= {rank: RankDied() for rank in json.loads((scratch / DIED).read_text())}
    for path in scratch.glob("rank_*.pickle"):
        failures[int(path.stem.removeprefix("rank_"))] = pickle.loads(path.read_bytes())
    if not failures:
        return WorkersFailed(f"torch's elastic agent ended with {said}")
    ranks = {int(path.stem.removeprefix("rank_")) for path in scratch.glob("rank_*.log")} | failures.keys()
    logs = [f"{scratch}/rank_{rank}.log on here" for rank in range(max(ranks) + 1)]
    places = rank_logs.kept(logs, folder)
    return rank_logs.named(cause_of_ranks(failures, places), places)


def context() -> RankContext:
    """Return which of the ranks this process is, by the environment that the agent made."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    return RankContext(*(int(os.environ[name]) for name in names))


def report(log: ReportLog, worker: Any, message: dict[str, Any]) -> None:
    """Let rank 0 write into the event log what all ranks report at one point. Every rank calls this."""
    save_traces(message, log.path.parent)
    ranks = worker.gather(message | {TRACES: {}})
    if worker.rank == 0:
        log.append(ranks)
    worker.barrier()  # what a rank does next is stamped after what rank 0 has written


def main(scratch: Path) -> None:
    """Be the agent: import torch, start the workers and wait for them. Raises if one fails."""
    import torch._dynamo  # noqa: F401  (the first optimizer of a process imports it, torch 2.13)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from mlbench.datasets import page_cache, verify  # noqa: F401  (the workers are forks)
    from mlbench.training import loop  # noqa: F401

    spec: WorkerSpec = pickle.load(sys.stdin.buffer)
    clock.adopt(spec.epoch)
    stamps = {"backend_begin": clock.wall()}
    plugins.implementation("task", spec.experiment.task.name)
    # LaunchConfig counts the GPUs (torch 2.13): after an answer of CUDA no fork may use it. NVML harms none.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=spec.experiment.workers,
        run_id=secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint=f"{LOOPBACK}:0",
        local_addr=LOOPBACK,
        max_restarts=0,
        start_method="fork",
    )
    try:
        elastic_launch(config, work)(spec, scratch, stamps)
    except ChildFailedError:
        # Not by `error`, which has one of several ranks that failed at once.
        died = [rank for rank in range(spec.experiment.workers) if _died(scratch, rank)]
        (scratch / DIED).write_text(json.dumps(died))
        raise


def _died(scratch: Path, rank: int) -> bool:
    """Return whether a rank neither finished nor raised nor was ended by the agent."""
    ended, raised = scratch / f"rank_{rank}.{ENDED}", scratch / f"rank_{rank}.pickle"
    return not raised.exists() and not (ended.exists() and ended.stat().st_size)


def work(spec: WorkerSpec, scratch: Path, stamps: dict[str, float]) -> None:
    """Be a worker: meet the others, and train."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.rendezvous import rendezvous

    rank, backend = context().rank, spec.experiment.backend
    log = os.open(scratch / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    ended = (scratch / f"rank_{rank}.{ENDED}").open("wb", buffering=0)
    faulthandler.register(signal.SIGTERM, file=ended, all_threads=False, chain=True)  # by the agent
    try:
        process_group.import_backend(backend.module, process_group.environment(backend))
        stamps = stamps | {"imports_end": clock.wall()}
        sockets = backend.sockets if backend.name == "gloo" else None
        process_group.choose_interface(LOOPBACK, backend.interface, sockets)
        meeting = next(rendezvous("env://", timeout=timedelta(seconds=backend.timeout_s)))
        process_group.init(*meeting, backend=backend.name, timeout_s=backend.timeout_s, module=backend.module)
        if rank == 0:
            stamps = stamps | {"group_end": clock.wall()}
            events.append(Path(spec.log), "startup", stamps, hostname=platform.node())
        train_loop_per_worker({"spec": spec})
        process_group.leave()
        ended.write(b"finished")
    except SignalException:  # the agent ends this rank, since another one has failed
        raise
    except Exception as error:
        part = scratch / f"rank_{rank}.part"
        part.write_bytes(_pickled(error))
        part.rename(scratch / f"rank_{rank}.pickle")
        raise


def _pickled(error: Exception) -> bytes:
    """Return an error for `_failure`. One that pickle cannot read again, e.g. for its keywords, as text."""
    try:
        pickle.loads(text := pickle.dumps(error))
    except Exception:  # whatever a custom class raises
        text = pickle.dumps(WorkersFailed(f"{type(error).__name__}: {error}"))
    return text


if __name__ == "__main__":
    from mlbench.launch import torchrun  # the workers' functions have this name, not __main__

    torchrun.main(Path(sys.argv[1]))

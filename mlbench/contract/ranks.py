"""Real gloo processes for tests, without Ray."""

import multiprocessing
import pickle
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlbench.training.worker import Worker, control_group

TIMEOUT_S = 300  # s, for ranks that wait for one another; a slow machine is no failure


def run_ranks(function: Callable[..., Any], workers: int, *arguments: Any) -> list[Any]:
    """Return function(worker, *arguments) of each of `workers` processes, in rank order.

    `function` must be importable (a module-level function) and its result picklable.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [
        context.Process(target=_rank, args=(answers, rank, workers, port, function, arguments))
        for rank in range(workers)
    ]
    for process in ranks:
        process.start()
    found: dict[int, Any] = {}
    while len(found) < workers:
        rank, answer, failure = answers.get(timeout=TIMEOUT_S)
        assert failure is None, failure
        found[rank] = pickle.loads(answer)
    for process in ranks:
        process.join(60)
    return [found[rank] for rank in range(workers)]


def _rank(answers: Any, rank: int, workers: int, port: int, function: Any, arguments: Any) -> None:
    import torch
    import torch.distributed as dist

    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers)
        worker = Worker(rank=rank, world_size=workers, local_rank=rank, control=control_group(TIMEOUT_S))
        # By value: torch would leave its tensors in shared memory that ends with this process.
        answers.put((rank, pickle.dumps(function(worker, *arguments)), None))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))


def mini_worker(worker: Worker, data_root: Path, *, seed: int = 1) -> Worker:
    """Return the worker with a data folder and a fixed seed."""
    worker.data_root, worker.seed = data_root, seed
    return worker

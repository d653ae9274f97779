"""Real gloo processes for tests, without Ray."""

import multiprocessing
import pickle
import queue
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlbench.training.worker import Worker, control_group

TIMEOUT_S = 300  # s, for ranks that wait for one another. A slow machine is no failure
# Imported once, by a server that every rank is forked from: a separate start of each rank took seconds for
# it.
IMPORTED = ["torch.distributed", "torch._dynamo", "mlbench.tasks.registry", "mlbench.training.loop"]
IMPORTED += ["mlbench.training.sync.ddp.torch", "mlbench.config.experiment", "mlbench.datasets.arrow"]


class RankPool:
    """Processes of one gloo group that run one function after another: starting them is what costs.

    After a failure they are ended, since some may wait for others. The next call starts new ones.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._ranks: list[Any] = []

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, *_: object) -> None:
        for _, calls in self._ranks:
            calls.put(None)
        for process, _ in self._ranks:
            process.join(60)
        self._end()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return function(worker, *arguments) of each process, in rank order.

        `function` must be importable (a module-level function) and its result picklable.
        """
        if not self._ranks:
            self._start()
        for _, calls in self._ranks:
            calls.put((function, arguments))
        results: dict[int, Any] = {}
        while len(results) < self.workers:
            try:
                rank, answer, failure = self._answers.get(timeout=TIMEOUT_S)
            except queue.Empty:
                failure = f"no answer within {TIMEOUT_S} s"
            if failure is not None:
                self._end()
                raise AssertionError(failure)
            results[rank] = pickle.loads(answer)
        return [results[rank] for rank in range(self.workers)]

    def _start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        self._answers = context.Queue()
        for rank in range(self.workers):
            calls = context.Queue()
            arguments = (calls, self._answers, rank, self.workers, port)
            process = context.Process(target=_rank, args=arguments)
            process.start()
            self._ranks.append((process, calls))

    def _end(self) -> None:
        for process, _ in self._ranks:
            process.kill()
            process.join()
        self._ranks = []


def run_ranks(function: Callable[..., Any], workers: int, *arguments: Any) -> list[Any]:
    """Return function(worker, *arguments) of each of `workers` new processes, in rank order."""
    with RankPool(workers) as pool:
        return pool.run(function, *arguments)


def _rank(calls: Any, answers: Any, rank: int, workers: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers)
        control = control_group(TIMEOUT_S)
        while (call := calls.get()) is not None:
            function, arguments = call
            worker = Worker(rank=rank, world_size=workers, local_rank=rank, control=control)
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

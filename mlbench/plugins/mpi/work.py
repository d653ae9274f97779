"""Drive requests under way: torch's Work, and the thread that drives them while no caller waits.

MPI moves data only during calls. A caller that waits calls it directly, at once. Requests during a backward
pass are driven by a thread that checks between naps, so that it takes little time from the computation.
MPICH's progress thread (MPIR_CVAR_ASYNC_PROGRESS) never naps and takes a whole core.
"""

import os
import threading
from collections.abc import Callable, Sequence
from time import sleep
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor
from torch._C._distributed_c10d import Work as TorchWork

from mlbench import clock

NAP_S = 20e-6  # s; Linux adds its timer slack, by default 50 us (prctl(2))
SPINS = 200  # checks before a waiting caller lets other processes have the core
YIELDS = 2_000  # checks until it naps


class Work(TorchWork):
    """Some MPI requests and a function to call when all are complete.

    - finish: called once, by the thread that finds them complete.
    - buffers: tensors that must live until then.
    - outputs: the future's value.
    - timeout_s: time limit for all this. After it, waiting raises RuntimeError.
    """

    def __init__(
        self,
        what: str,
        requests: Sequence[MPI.Request],
        outputs: list[Tensor],
        *,
        timeout_s: float,
        finish: Callable[[], object],
        buffers: Sequence[Tensor],
    ) -> None:
        super().__init__()
        self._what, self._timeout_s = what, timeout_s
        self._requests, self._finish = list(requests), finish
        self._outputs, self._buffers = outputs, buffers
        self._deadline = clock.monotonic() + timeout_s
        self._status = MPI.Status()
        self._polling = threading.Lock()
        self._ended = False
        self._failure: Exception | None = None
        self._future: Any = None

    def poll(self) -> bool:
        """Let MPI make progress. Return whether this work has ended."""
        if not self._polling.acquire(blocking=False):
            return False  # another thread is at it
        try:
            if self._ended:
                return True
            self._ended = self._try_to_end()
            if not self._ended:
                return False
            future = self._future
        finally:
            self._polling.release()
        if future is not None:
            self._complete(future)
        return True

    def _try_to_end(self) -> bool:
        try:
            if len(self._requests) == 1:
                complete = self._requests[0].Test(self._status)
            else:
                complete = MPI.Request.Testall(self._requests)
            if complete:
                self._finish()
                self._buffers = ()
                return True
            if clock.monotonic() > self._deadline:
                raise RuntimeError(f"MPI {self._what} did not finish within {self._timeout_s:g} s")
        except Exception as error:  # for any waiting caller; MPI's exception cannot travel to another process
            self._failure = RuntimeError(str(error))
            return True
        return False

    def wait(self, timeout: Any = None) -> bool:
        """Wait until it has ended. Raises RuntimeError if it failed or took longer than it may."""
        looks = 0
        while not self.poll():
            looks += 1
            if looks > YIELDS:
                sleep(NAP_S)
            elif looks > SPINS:
                os.sched_yield()
        if self._failure is not None:
            raise self._failure
        return True

    def synchronize(self) -> None:
        """Wait, as `wait` does."""
        self.wait()

    is_completed = poll

    def is_success(self) -> bool:
        """Return whether it has ended without a failure."""
        return self.poll() and self._failure is None

    def exception(self) -> Exception | None:
        """Return the failure, if any."""
        return self._failure

    def result(self) -> list[Tensor]:
        """Return the tensors that were received."""
        return self._outputs

    def get_future(self) -> Any:
        """Return a future of the tensors that were received."""
        with self._polling:
            if self._future is None:
                devices: Any = sorted({output.device for output in self._outputs if output.is_cuda}, key=str)
                self._future = torch.futures.Future(devices=devices or None)
                if not self._ended:
                    return self._future
        if self._ended and not self._future.done():
            self._complete(self._future)
        return self._future

    def _complete(self, future: Any) -> None:
        if self._failure is not None:
            future.set_exception(self._failure)
        else:
            future.set_result(self._outputs)

    def source_rank(self) -> int:
        """Return the sender of a message that a receive from any rank has got."""
        return self._status.Get_source()

    _source_rank = source_rank


class ProgressThread:
    """A thread that drives works until they end."""

    def __init__(self) -> None:
        self._works: list[Work] = []
        self._wake = threading.Event()
        threading.Thread(target=self._run, name="mpi progress", daemon=True).start()

    def watch(self, work: Work) -> None:
        """Drive `work` until it ends."""
        self._works.append(work)
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._works:
                ended = [work for work in tuple(self._works) if work.poll()]
                for work in ended:
                    self._works.remove(work)
                if not ended:
                    sleep(NAP_S)

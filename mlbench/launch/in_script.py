"""Measure a training script by `mlbench.measure(...)`, with a custom goal and no mlbench command."""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from mlbench import clock
from mlbench.config.errors import UserError
from mlbench.config.goal import Direction, Goal
from mlbench.launch import command_run, execute
from mlbench.launch.output import Output
from mlbench.launch.recorder import Recorder
from mlbench.probe import install, sender, stamps
from mlbench.script import failure_cause
from mlbench.script.collector import Collector

WRITE_S = 30.0  # s between two looks for what a process that is killed would lose
DRAIN_S = 30.0  # s that the other ranks have to report their last steps
LOOPBACK = "127.0.0.1"


class Measurement:
    """A context manager around a training loop. Rank 0 writes the run, unless a command of mlbench does.

    `mlbench.measure` describes the arguments.
    """

    def __init__(
        self,
        metric: str = "none",
        goal: float | None = None,
        *,
        direction: Direction = "max",
        overrides: Iterable[str] = (),
        output: Output | None = None,
    ) -> None:
        self.metric = metric
        self._goal = Goal(metric, goal, direction) if goal is not None else None
        self._target = {"metric": metric, "target": goal, "direction": direction}
        self._words, self._output = list(overrides), output or Output()
        self._recorder: Recorder | None = None

    def __enter__(self) -> "Measurement":
        import torch

        self._alone = sender.ADDRESS not in os.environ  # else a command of mlbench measures this process
        self._dist: Any = torch.distributed
        together = self._dist.is_available() and self._dist.is_initialized()
        self._rank = self._dist.get_rank() if together else int(os.environ.get("RANK", "0"))
        if self._alone:
            if not together and int(os.environ.get("WORLD_SIZE", "1")) > 1:
                raise UserError(
                    "mlbench.measure() needs the ranks' process group: call init_process_group first"
                )
            self._share(self._listen() if self._rank == 0 else "", together)
        self._probe = install.start(torch, anew=self._alone)
        self._probe.goal = self._target
        return self

    def _listen(self) -> str:
        """Begin to record, on rank 0. Return its address and token."""
        experiment = command_run.experiment_of(self._words, [sys.executable, *sys.argv])
        collector = Collector(os.environ.get("MASTER_ADDR", LOOPBACK), metric="none", goal=None)
        line, begun = sys.orig_argv, _ends[-1] if _ends else clock.process_start()
        self._recorder = Recorder(
            line, self._words, experiment, collector, begun=begun, lock=None, output=self._output, live=False
        )
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write, args=(self._recorder,), daemon=True)
        self._writer.start()
        return f"{collector.address} {collector.token}"

    def _write(self, recorder: Recorder) -> None:
        """Write what the ranks have reported. Seldom, as it takes Python's lock from the script."""
        while not self._ended.wait(WRITE_S):
            recorder.take(final=False)

    def _share(self, text: str, together: bool) -> None:
        """Send rank 0's address to all ranks, over the script's process group."""
        if together and self._dist.get_world_size() > 1:
            texts = [text]
            self._dist.broadcast_object_list(texts, 0, device=self._dist.group.WORLD.bound_device_id)
            text = texts[0]
        os.environ[sender.ADDRESS], os.environ[sender.TOKEN] = text.split()

    def steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, which need not be torch's. Waiting for them is `data_wait`."""
        batches = iter(loader)
        while True:
            self._probe.mark(stamps.DATA)
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._probe.mark(stamps.DATA_END)
            yield batch

    def validation(self, **metrics: float) -> bool:
        """Note a validation that ends now, the same on all ranks. Return whether the goal is reached."""
        value = metrics.get(self.metric)
        if value is None:
            named = ", ".join(metrics) or "nothing"
            raise UserError(f"validation() got {named} instead of {self.metric}")
        self._probe.values.append((clock.monotonic(), float(value)))
        return self._goal is not None and self._goal.reached(float(value))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._probe.finish()
        if self._alone:
            del os.environ[sender.ADDRESS], os.environ[sender.TOKEN]
        if self._recorder is None:
            return
        recorder, self._recorder = self._recorder, None
        try:
            self._ended.set()
            self._writer.join()
            recorder.drain(DRAIN_S)
            recorder.finish(*_failure(error))
        finally:
            recorder.stop()
            _ends.append(clock.wall())


def _failure(error: BaseException | None) -> tuple[str | None, str | None]:
    """Return the status and the sentence, for `Recorder.finish`, of a run that an exception has ended."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", execute.STOPPED
    if error is None or type(error) is SystemExit and error.code in (None, 0):
        return None, None
    return "failed", failure_cause.plain(f"{type(error).__name__}: {error}")


_ends: list[float] = []  # of this process's measurements, after each of which the next begins, s since 1970

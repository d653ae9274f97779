"""Record some steps with torch.profiler: a Perfetto trace, Chakra's execution trace, the longest operators.

The profiler slows the steps that it records, so such a run counts nowhere (record/attempts.py).
"""

import gzip
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from mlbench.training.worker import Worker

WARM_UP = 5  # steps before the first that is recorded: allocators, DDP's buckets, autotuning
DEAREST = 10  # operators that are listed
TRACE, EXECUTION_TRACE = "trace.json", "execution_trace.json"  # Chrome's trace event format, and Chakra's


@dataclass
class RankProfile:
    """What one rank's profiler recorded.

    - operators: the most expensive of this rank, as `record.Operator` has them.
    - files: by name, gzipped.
    """

    steps: int
    operators: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


class StepProfiler:
    """Records steps of this rank, as many as the worker sets, after WARM_UP others."""

    def __init__(self, worker: Worker) -> None:
        self._result: RankProfile | None = None
        self._steps, self._rank = worker.profile_steps, worker.rank
        self._cuda = worker.device.type == "cuda"
        self._step = 0
        self._folder = tempfile.TemporaryDirectory()
        self._observer = ExecutionTraceObserver().register_callback(self._path(EXECUTION_TRACE))
        self._profiler = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])],
            schedule=schedule(wait=WARM_UP - 1, warmup=1, active=self._steps, repeat=1),
            on_trace_ready=self._export,
            record_shapes=True,
            acc_events=True,  # or `key_averages` is empty once the schedule has ended its cycle
            execution_trace_observer=self._observer,
        )
        self._profiler.start()

    def step(self) -> None:
        """End a step."""
        self._step += 1
        if self._result is None:
            self._profiler.step()

    def finish(self) -> RankProfile | None:
        """End recording. None if training ended before it began."""
        if self._result is None:
            self._profiler.stop()
        self._folder.cleanup()
        return self._result

    def _path(self, name: str) -> str:
        return str(Path(self._folder.name) / f"rank{self._rank}.{name}")

    def _export(self, recorded: profile) -> None:
        recorded.export_chrome_trace(self._path(TRACE))
        self._observer.unregister_callback()  # completes its file
        paths = sorted(Path(self._folder.name).glob("*.json"))
        self._result = RankProfile(
            steps=min(self._steps, self._step - WARM_UP),
            operators=_dearest(recorded, cuda=self._cuda),
            files={path.name: gzip.compress(path.read_bytes()) for path in paths},
        )


def _dearest(recorded: profile, *, cuda: bool) -> list[dict[str, Any]]:
    """Return the operators with the longest self time, without operators called within."""
    averages = [each for each in recorded.key_averages() if not each.key.startswith("ProfilerStep")]
    times = {id(each): each.self_device_time_total if cuda else each.self_cpu_time_total for each in averages}
    whole = sum(times.values()) or 1.0
    averages.sort(key=lambda each: -times[id(each)])
    return [
        {
            "name": each.key,
            "calls": each.count,
            "seconds": times[id(each)] / 1e6,
            "share": times[id(each)] / whole,
        }
        for each in averages[:DEAREST]
    ]

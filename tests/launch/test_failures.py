"""What Ray and torch raise becomes one sentence that names the rank; their own classes where possible."""

from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError, WorkerHealthCheckFailedError
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError
from syrupy.assertion import SnapshotAssertion

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.launch import execute
from mlbench.launch.failures import WorkersFailed, missing_ranks, root_cause

# torch 2.13: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, monitoredBarrier.
FROM_RANK_0 = "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 10000 ms"
FROM_RANK_2 = (
    "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
    "rank 0. Please check rank 0 logs for faulty rank."
)
# Ray 2.60: what it guesses of any dead process, and what its memory monitor says.
GUESS = (
    "Worker unexpectedly exits: (1) The process is killed by SIGKILL by OOM killer due to high memory usage."
)
MONITOR = "Memory on the node was 15.2GB / 16GB (0.953), which exceeds the memory usage threshold of 0.95."


def died() -> Exception:
    return WorkerHealthCheckFailedError("A worker health check failed.", ActorDiedError())


@pytest.mark.parametrize(
    "failures",
    [
        {1: died(), 0: RuntimeError("Connection closed by peer")},
        {0: died(), 1: died()},
        {0: RuntimeError("gloo"), 1: WorkersFailed("stuck: rank 2")},
        {2: WorkersFailed("rank 0 is gone"), 0: WorkersFailed("rank 1 is gone")},
        {0: ValueError("one\ntwo"), 1: KeyError()},
        {
            0: RuntimeError("closed"),
            1: OutOfMemoryError("killed due to the node running low on memory"),
        },
        {0: WorkerHealthCheckFailedError("x", RuntimeError(MONITOR))},
        {0: WorkerHealthCheckFailedError("x", RuntimeError(GUESS))},
        {0: RuntimeError("CUDA out of memory. Tried to allocate")},
    ],
)
def test_a_worker_s_end_is_one_sentence(failures: dict[int, Exception], snapshot: SnapshotAssertion) -> None:
    cause = root_cause(WorkerGroupError("training failed", failures))
    assert isinstance(cause, WorkersFailed) and str(cause) == snapshot
    assert "\n" not in str(cause)


def test_a_user_s_mistake_comes_before_what_follows_from_it() -> None:
    mistake = UserError("no file", hint="make one")
    assert root_cause(WorkerGroupError("x", {0: RuntimeError("closed"), 1: mistake})) is mistake
    assert root_cause(ControllerError(mistake)) is mistake


@pytest.mark.parametrize(
    "error",
    [
        ControllerError(RuntimeError("rank 1 did not import torch within 5 s")),
        ControllerError(WorkerGroupStartupTimeoutError(num_workers=2)),
        ActorDiedError(),
        RuntimeError(),
    ],
)
def test_an_error_outside_the_workers_is_one_sentence(error: Exception, snapshot: SnapshotAssertion) -> None:
    cause = root_cause(error)
    assert isinstance(cause, WorkersFailed) and str(cause) == snapshot and "\n" not in str(cause)


@pytest.mark.parametrize(
    ("answer", "ranks"),
    [(FROM_RANK_0, "1, 2"), (FROM_RANK_2, "0"), ("[Rank 0]: Rank 12 failed to pass", "12"), ("else", None)],
)
def test_the_ranks_are_those_that_torch_names(answer: str, ranks: str | None) -> None:
    assert missing_ranks(answer) == ranks


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [(2**30, "as the control group's, 1.0 GiB, memory ran out"), (None, "as the machine's memory ran out")],
)
def test_a_process_that_the_kernel_killed_for_memory_is_told_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, sentence: str
) -> None:
    def fail(_: object) -> None:
        raise WorkersFailed("a process has died")

    kills = iter((3, 4, 4, 4))
    monkeypatch.setattr(execute.node, "oom_kills", lambda: next(kills))
    monkeypatch.setattr(execute.node, "memory_limit", lambda: limit)
    monkeypatch.setattr(execute.clusters, "connect", fail)
    (tmp_path / "events.jsonl").touch()
    for error in (f"a process has died; the kernel killed a process here {sentence}", None):
        about = {"seed": 1, "display": None, "folder": tmp_path, "lock": None, "give_up": pytest.fail}
        end, _ = execute._measure(compose([]), **about)
        assert end.status == "failed" and end.error
        assert end.error.startswith(error) if error else end.error == "a process has died"

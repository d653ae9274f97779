"""How many functions of mlbench lie between a command and the model's forward pass; Ray is not started."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import ray.train
from ranks import mini_worker

import mlbench
from mlbench import clock, run
from mlbench.clusters.connection import Connection
from mlbench.config.compose import compose
from mlbench.launch import execute, process_group, worker_process
from mlbench.record.record import Node
from mlbench.tasks.logreg.model import Linear
from mlbench.training.worker import Worker

PACKAGE = Path(mlbench.__file__).parent
# 15 in 7 on 2026-11-23; the seventh file is what the command and `mlbench.run` share, the sixth the seam of
# a second framework.
MOST_FRAMES, MOST_FILES = 10, 7


class Reached(BaseException):
    """Ends the walk; nothing of mlbench catches it."""


def stopping(frames: list[tuple[str, str]], *, call: int = 1) -> Callable[..., Any]:
    """Return a function whose `call`-th call notes file and function of mlbench's frames but a task's."""
    calls = iter(range(1, call + 1))

    def reach(module: Any = None, *values: Any, **named: Any) -> Any:
        if next(calls) < call:
            return forward(module, *values)
        for frame in traceback.extract_stack():
            path = Path(frame.filename)
            if path.is_relative_to(PACKAGE) and not path.is_relative_to(PACKAGE / "tasks"):
                frames.append((str(path.relative_to(PACKAGE)), frame.name))
        raise Reached

    forward = Linear.forward
    return reach


@contextmanager
def connect(_: Any) -> Iterator[Connection]:
    yield Connection({"CPU": 1.0}, "PACK", 1, False, host="127.0.0.1", job_id="1", node_ids=[])


@pytest.mark.slow
def test_from_the_command_to_the_third_forward_pass(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [
        "task=logreg",
        f"output_root={tmp_path}",
        f"data_root={data_root}",
        "cluster.exclusive=false",
    ]
    monkeypatch.setattr(execute.clusters, "connect", connect)
    monkeypatch.setattr(run.signals, "exit_with_parent", lambda: None)  # this process is the tests'
    driver: list[tuple[str, str]] = []
    monkeypatch.setattr(ray.train, "ScalingConfig", stopping(driver))
    with pytest.raises(Reached):
        run.main(overrides)

    spec = worker_process.WorkerSpec(
        compose(overrides), 1, 1, ("", 0), "", str(tmp_path / "log"), None, clock.epoch()
    )
    node = Node(hostname="here", usable_cpus=1)
    monkeypatch.setattr(worker_process, "build_worker", lambda _: mini_worker(Worker(), data_root))
    context = worker_process.RankContext(0, 1, 0, 1, 0)
    monkeypatch.setattr(worker_process, "rank_context", lambda _: context)
    monkeypatch.setattr(worker_process, "describe_node", lambda _: node)
    monkeypatch.setattr(worker_process, "observed", lambda *_, **__: nullcontext([node]))
    monkeypatch.setattr(process_group, "await_keys", lambda *_: None)
    worker: list[tuple[str, str]] = []
    monkeypatch.setattr(Linear, "forward", stopping(worker, call=3))
    with pytest.raises(Reached):
        worker_process.train_loop_per_worker({"spec": spec})

    walk = driver + worker
    assert [name for _, name in worker] == ["train_loop_per_worker", "train", "train_step", "step"]
    assert len(walk) <= MOST_FRAMES and len({file for file, _ in walk}) <= MOST_FILES, walk

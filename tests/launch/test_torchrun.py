"""`launcher=torchrun`: the suite's own loop in processes of torch's agent, where Ray cannot be imported."""

import importlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from commands import PATIENCE_S
from conftest import ROOT
from syrupy.assertion import SnapshotAssertion
from torch.distributed.launcher import api

from mlbench import clock
from mlbench.clusters import node, placement
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.launch import execute, torchrun
from mlbench.launch.failures import WorkersFailed
from mlbench.launch.worker_process import WorkerSpec
from mlbench.record import events
from mlbench.record.reader import load
from mlbench.record.record import Gpu
from mlbench.studies import preview


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "why"), [(signal.SIGKILL, "killed, or crashed"), (signal.SIGSEGV, "Segmentation fault")]
)
def test_a_killed_worker_ends_the_run_with_its_rank_and_leaves_no_process(
    tmp_path: Path, data_root: Path, sent: signal.Signals, why: str
) -> None:
    shadow = tmp_path / "shadow"
    (shadow / "ray").mkdir(parents=True)
    (shadow / "ray" / "__init__.py").write_text("raise ImportError('there is no Ray')\n")
    words = ["task=logreg", "workers=2", "launcher=torchrun", "seed=1", f"output_root={tmp_path / 'runs'}"]
    words += [f"data_root={data_root}", "cluster.exclusive=false", "goal=none", "task.epochs=100000"]
    run = subprocess.Popen(
        [sys.executable, "-m", "mlbench.run", *words, "division=open"], cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(shadow), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    followed: list[dict[str, object]] = []
    while not any(event["key"] == "validation" for event in followed):
        assert run.poll() is None, run.communicate()[0]
        logs = [*tmp_path.glob("runs/*/events.jsonl")]
        followed = [*events.read(logs[0])] if logs else []
    started = psutil.Process(run.pid).children(recursive=True)
    agent = next(process for process in started if "mlbench.launch.torchrun" in process.cmdline())
    _, worker = sorted(agent.children(), key=lambda process: process.create_time())  # ranks 0 and 1
    worker.send_signal(sent)
    output, _ = run.communicate(timeout=PATIENCE_S)
    (path,) = tmp_path.glob("runs/*/record.json")
    assert (run.returncode, load(path).status) == (1, "failed"), output
    error = load(path).error or ""
    assert error == f"rank 1 died: {why}. Log of rank 1: {path.parent / 'rank_1.log'}"
    assert not [
        process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["cluster=attached"], "launcher=torchrun starts workers on this machine, not on cluster=attached"),
        (["max_failures=1"], "launcher=torchrun starts no failed run again"),
        pytest.param(
            ["network=1gbit_1ms"],
            "launcher=torchrun starts no emulated hosts",
            marks=pytest.mark.plugin("emulation"),
        ),
    ],
)
def test_what_a_launcher_cannot_start_is_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match="launcher") as caught:
        compose(["launcher=torchrun", *overrides])
    assert sentence in str(caught.value)


def test_a_command_of_ones_own_is_neither_ray_s_nor_torchrun_s() -> None:
    with pytest.raises(UserError, match="mlbench measure -- COMMAND"):
        execute.execute(compose(["task=script", "launcher=command"]))
    with pytest.raises(UserError, match="mlbench measure -- COMMAND"):
        preview.run(compose(["task=logreg", "launcher=command"]), [])


class KeywordError(Exception):
    """An error that pickle writes and cannot read."""

    def __init__(self, text: str, *, hint: str) -> None:
        super().__init__(f"{text}: {hint}")


def test_what_the_ranks_left_becomes_one_sentence(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    scratch, folder = tmp_path / "scratch", tmp_path / "run"
    scratch.mkdir()
    folder.mkdir()
    lost = torchrun._failure(scratch, folder, "exit code 1: no torch")
    assert str(lost) == snapshot
    error = RuntimeError("Connection closed by peer")
    (scratch / "rank_0.pickle").write_bytes(pickle.dumps(error))
    (scratch / torchrun.DIED).write_text(json.dumps([1]))
    (scratch / "rank_1.log").write_text("Segmentation fault")
    failure = torchrun._failure(scratch, folder, "")
    assert isinstance(failure, WorkersFailed)
    assert str(failure) == snapshot
    assert (folder / "rank_1.log").read_text() == "Segmentation fault"
    mistake = UserError("the nodes hold different data sets", hint="prepare the same one")
    (scratch / "rank_0.pickle").write_bytes(pickle.dumps(mistake))
    assert str(torchrun._failure(scratch, folder, "")) == str(mistake)
    error = KeywordError("no rows", hint="prepare them")
    (scratch / "rank_0.pickle").write_bytes(torchrun._pickled(error))
    (scratch / torchrun.DIED).unlink()
    assert "KeywordError: no rows: prepare them" in str(torchrun._failure(scratch, folder, ""))


def test_workers_get_this_machine_s_cpus() -> None:
    many = torchrun.connection(compose(["launcher=torchrun", f"workers={2 * node.usable_cpus()}"]))
    assert (many.threads, many.oversubscribed, many.workers(), many.lost()) == (1, True, [], None)


def test_the_agent_leaves_cuda_to_the_workers_that_it_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once CUDA has answered a process, none that it forks can use it: "Cannot re-initialize CUDA"."""
    importlib.import_module("torch._dynamo")  # a build for CPUs cannot while it says that it knows CUDA
    spec = WorkerSpec(compose(["workers=2"]), 1, 1, ("127.0.0.1", 9), "", "", None, clock.epoch())
    asked: list[str] = []
    configs: list[api.LaunchConfig] = []

    def answer_of_cuda() -> int:
        asked.append("CUDA")
        return 2

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where torch leaves a folder
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", answer_of_cuda, raising=False)
    monkeypatch.setattr(api, "elastic_launch", lambda config, work: lambda *_: configs.append(config))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(pickle.dumps(spec))))
    torchrun.main(tmp_path)
    assert [config.start_method for config in configs] == ["fork"] and asked == []


@pytest.mark.parametrize(("visible", "room"), [(None, 4), ("2,3", 2), ("", 0), ("-1", 0)])
def test_workers_get_no_gpu_that_is_hidden(
    visible: str | None, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "gpus", lambda: ([Gpu(name="T4")] * 4, None))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UserError, match=f"5 GPUs, .* {room} "):
        torchrun.connection(compose(["launcher=torchrun", "backend=nccl", "workers=5"]))


def test_a_driver_that_does_not_start_stops_runs_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a login node: the library is there, the driver's module is not."""
    monkeypatch.setattr(node, "gpus", lambda: ([], "Driver Not Loaded"))
    assert torchrun.connection(compose(["launcher=torchrun"])).threads
    for launcher in ("torchrun", "ray"):
        experiment = compose([f"launcher={launcher}", "backend=nccl"])
        with pytest.raises(UserError, match="Driver Not Loaded"):
            placement.require_room(experiment)
    with pytest.raises(UserError, match="Driver Not Loaded"):
        torchrun.connection(compose(["launcher=torchrun", "backend=nccl"]))

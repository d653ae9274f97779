"""A run without Ray is written by the process that stamps it, whose threads must not wait for one another."""

import os
import platform
import threading
from pathlib import Path
from typing import Any

import pytest

from mlbench import clock
from mlbench.config.errors import UserError
from mlbench.launch import cache, command_run, execute
from mlbench.launch.output import Output
from mlbench.launch.recorder import Recorder
from mlbench.probe.stamps import FORWARD, FORWARD_END, STEP
from mlbench.record import events
from mlbench.record.record import Node, Record
from mlbench.script.collector import Collector
from mlbench.script.listener import Rank
from mlbench.script.steps import assemble
from mlbench.tracking import client, uploader


def one_step(folder: Path, *, live: bool = True, **about: Any) -> Recorder:
    """Return the recorder of a run whose only rank has made a step."""
    overrides = [f"output_root={folder}"]
    experiment = command_run.experiment_of(overrides, ["true"])
    collector = Collector("127.0.0.1", metric="none", goal=None)
    now = clock.monotonic()
    step = assemble([(FORWARD, now + 1), (FORWARD_END, now + 2), (STEP, now + 3)], begin=now, rows=1)
    rank = {"rank": 0, "goal": {}, "backend": None, "device": "cpu", "threads": 1, "cpus": [0]}
    rank["host"] = platform.node()
    collector.ranks[0] = Rank(rank | about, steps=[step], until=now + 3, ended=True)
    collector.world = 1
    more = {"begun": now, "lock": None, "output": Output(), "live": live}
    return Recorder(["true"], overrides, experiment, collector, **more)


@pytest.mark.usefixtures("own_temporary_files")
def test_the_thread_that_writes_to_mlflow_has_the_priority_of_those_that_stamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    niceness, looked = list[int](), threading.Event()

    def look(_: object) -> None:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        looked.set()

    monkeypatch.setattr(uploader.RunUpload, "advance", look)
    recorder = one_step(tmp_path)
    recorder.collector.ranks[0].peak_bytes = 5
    try:
        recorder.drain(0.0)
        assert looked.wait(60)
        record = recorder.finish(None, None)
    finally:
        recorder.stop()
    assert record is not None and record.status == "completed" and record.steps == 1
    assert record.peak_memory_bytes == 5
    assert set(niceness) == {os.getpriority(os.PRIO_PROCESS, 0)}


@pytest.mark.usefixtures("own_temporary_files")
def test_a_script_that_records_itself_trains_beside_no_upload_and_loses_no_interval_to_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, uploads = events.append, list[int]()
    monkeypatch.setattr(uploader.RunUpload, "advance", lambda _: uploads.append(1))

    def refuse(path: Path, key: str, value: Any, **more: Any) -> None:
        if key == "validation":
            raise UserError("the disk is full")
        append(path, key, value, **more)

    recorder = one_step(tmp_path, live=False)
    try:
        monkeypatch.setattr(events, "append", refuse)
        with pytest.raises(UserError):
            recorder.take(final=True)
        beside = [thread for thread in threading.enumerate() if thread.name == "mlflow"]
        monkeypatch.setattr(events, "append", append)
        recorder.drain(0.0)
        record = recorder.finish(None, None)
    finally:
        recorder.stop()
    assert record is not None and record.steps == 1
    assert not beside and uploads


def finished(recorder: Recorder) -> Record:
    """Return the record of a run whose command has ended."""
    try:
        recorder.drain(0.0)
        record = recorder.finish(None, None)
    finally:
        recorder.stop()
    assert record is not None
    return record


def add_rank(recorder: Recorder, **about: Any) -> None:
    """Let one more rank make the step that rank 0 has made."""
    collector = recorder.collector
    first = collector.ranks[0]
    collector.ranks[collector.world] = Rank(first.about | about, steps=first.steps[:], until=first.until)
    collector.world += 1


@pytest.mark.usefixtures("own_temporary_files")
def test_every_host_of_a_script_is_a_node_of_its_record(tmp_path: Path) -> None:
    recorder = one_step(tmp_path, live=False)
    recorder.collector.hosts |= {"b": Node(hostname="b", usable_cpus=1, cpu_quota=2.5), "c": None}
    for host, cpus in (("b", [0, 1]), ("b", [2, 3]), ("c", [7])):
        add_rank(recorder, host=host, cpus=cpus)
    recorder._host.energy_j = {"package": 5.0}  # of this host alone
    record = finished(recorder)
    assert not record.oversubscribed
    assert [node.hostname for node in record.nodes] == [platform.node(), "b", "c"]
    _, b, c = record.nodes
    assert (b.affinity_cpus, b.usable_cpus) == (4, 2) and c.usable_cpus == 1
    assert [node.threads_per_worker for node in record.nodes] == [1, 1, 1]
    assert any(warning.startswith("c: its hardware") for warning in record.warnings)
    assert any(warning.startswith("b: its energy") for warning in record.warnings)
    assert not any(node.energy_j for node in record.nodes)


@pytest.mark.usefixtures("own_temporary_files")
def test_the_host_of_the_command_is_no_node_of_a_script_that_trains_elsewhere(tmp_path: Path) -> None:
    recorder = one_step(tmp_path, live=False, host="b", threads=2)
    recorder.collector.hosts["b"] = Node(hostname="b", usable_cpus=8)
    record = finished(recorder)
    assert [node.hostname for node in record.nodes] == ["b"]
    assert record.oversubscribed  # two threads on the one CPU that the rank may use
    assert record.nodes[0].interference is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:nccl", "undefined"])
def test_of_a_group_with_several_backends_the_record_has_that_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, device: str
) -> None:
    monkeypatch.setattr(execute, "resolved", lambda experiment: (experiment, 1))  # there need be no GPU
    recorder = one_step(tmp_path, live=False, backend=backend, device=device)
    try:
        recorder.take(final=True)
        assert recorder.experiment.backend.name == {"cpu": "gloo", "cuda": "nccl"}[device]
    finally:
        recorder.stop()


def test_the_store_s_imports_are_over_before_the_command_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = list[str]()
    monkeypatch.setattr(client, "preload", lambda uri, artifacts: order.append(uri))

    def start(*_: object, **__: object) -> None:
        order.append("command")
        raise OSError

    monkeypatch.setattr(command_run.child, "Child", start)
    overrides = [f"output_root={tmp_path}", "cluster.exclusive=false"]
    with pytest.raises(OSError):
        command_run.run(["true"], overrides, begun=0.0, listen="127.0.0.1", output=Output())
    store, command = order
    assert store.startswith("sqlite") and command == "command"


@pytest.mark.usefixtures("own_temporary_files")
def test_a_finished_run_of_a_script_stands_for_no_other(tmp_path: Path) -> None:
    recorder = one_step(tmp_path)
    record = finished(recorder)
    assert record.status == "completed"
    again = recorder.experiment.model_copy(update={"seed": record.seed})
    assert cache.find_cached(again, data=None) is None


@pytest.mark.usefixtures("own_temporary_files")
def test_a_rank_that_its_environment_promises_and_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    recorder = one_step(tmp_path)
    recorder.collector.world = 4  # WORLD_SIZE, left of another job
    record = finished(recorder)
    assert (record.workers, record.steps) == (1, 1)
    assert any("1 of 4 ranks trained" in warning for warning in record.warnings)

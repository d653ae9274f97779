"""What `execute.execute` reuses, and what a run that could not train leaves behind; no worker is started."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zips
from commands import PATIENCE_S, until
from driven import Run, phase_times

from mlbench import clock, results
from mlbench.clusters import node
from mlbench.clusters.connection import Connection
from mlbench.clusters.submission import SubmissionLost
from mlbench.config import compose, identity
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.launch import execute, remote_run
from mlbench.launch.failures import WorkersFailed
from mlbench.record import events, reader, study
from mlbench.record.record import Record, WorkerResult
from mlbench.tracking import sync, uploader

EPOCH = {
    "epoch": 1.0, "step": 20, "elapsed": 4.0, "train_loss": 1.0, "metrics": {"accuracy": 50.0, "loss": 2.0},
    "goal_reached": False,
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path, empty_store: Path) -> Path:
    return zips.with_store(tmp_path / "runs", empty_store)


def logreg(root: Path, data_root: Path, *overrides: str) -> Experiment:
    """Return the experiment that driven.Run runs, with its seed."""
    return compose.compose(
        ["task=logreg", "workers=2", "seed=7", f"output_root={root}", f"data_root={data_root}", *overrides]
    )


def fails(
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    *,
    trained: bool = False,
    result: WorkerResult | None = None,
) -> None:
    """Let the cluster refuse every run, or else the workers after their first validation or their result."""

    @contextmanager
    def connect(_: Experiment) -> Iterator[Any]:
        if not trained:
            raise error
        yield Connection({"CPU": 1.0}, "PACK", 1, False, host="127.0.0.1", job_id="1", node_ids=[])

    def run_workers(_: Any, __: Any, folder: Path) -> None:
        now, log = clock.wall(), folder / events.NAME
        times = [phase_times(1.0), phase_times(2.0)]
        events.append(log, "validation", EPOCH | {"wall": now}, started_at=now - 4, phase_times=times)
        if result is not None:
            events.append(log, "worker_result", result.model_dump(mode="json"))
        raise error

    monkeypatch.setattr(execute.clusters, "connect", connect)
    monkeypatch.setattr(execute, "run_workers", run_workers)


def left(root: Path) -> tuple[Record, list[str]]:
    """Return the only run's record and the keys of its log, once nothing writes to MLflow any more."""
    for thread in threading.enumerate():
        if thread.name == "mlflow":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    (path,) = root.glob("*/record.json")
    return reader.load(path), [event["key"] for event in events.read(path.parent / events.NAME)]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (UserError("no room", hint="add nodes"), "no room (add nodes)"),
        (RuntimeError("Version mismatch"), "RuntimeError: Version mismatch"),  # which nobody foresaw
    ],
)
def test_a_run_that_finds_no_room_is_recorded_as_failed_and_can_be_deleted(
    root: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception, error: str
) -> None:
    fails(refusal, monkeypatch)
    with pytest.raises(type(refusal)) as caught:
        execute.execute(logreg(root, data_root))
    assert caught.value is refusal
    record, keys = left(root)
    assert (record.status, record.error, record.validations) == ("failed", error, [])
    assert keys == ["run_configuration", "run_result", "run_stop"]
    assert {run.outcome for run in sync.sync_runs(root, None)} <= {"uploaded", "present"}
    assert [run.outcome for run in sync.sync_runs(root, None)] == ["present"]
    assert results.main(["delete", "status=failed", "--yes", f"output_root={root}"]) == 0
    assert not (root / record.run_id).exists()


def test_a_study_knows_a_run_from_its_begin(
    root: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would know of one whose command was killed and whose folder is gone."""
    experiment, deleted = logreg(root, data_root, "study=s"), []
    point = study.StudyPoint(key=identity.key(experiment), overrides=("task=logreg",), seeds=(7,))
    folder = study.folder(root, "s")
    study.save(study.new("s", question="?").model_copy(update={"points": (point,)}), folder)
    (folder / study.LOG).touch()

    @contextmanager
    def connect(_: Experiment) -> Iterator[Any]:
        deleted.append(study.histories(root)[point.key].deleted)
        raise UserError("no room")
        yield

    monkeypatch.setattr(execute.clusters, "connect", connect)
    with pytest.raises(UserError):
        execute.execute(experiment)
    record, _ = left(root)
    for path in (root / record.run_id / "record.json", root / record.run_id):
        deleted.append(study.histories(root)[point.key].deleted)
        path.unlink() if path.is_file() else shutil.rmtree(path)
    deleted.append(study.histories(root)[point.key].deleted)
    assert deleted == [set(), set(), {record.run_id}, {record.run_id}]


def test_a_mistake_that_shows_after_hours_keeps_what_was_measured(
    root: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(UserError("the disk is full"), monkeypatch, trained=True)
    with pytest.raises(UserError, match="disk is full"):
        execute.execute(logreg(root, data_root))
    record, keys = left(root)
    assert (record.status, record.error) == ("failed", "the disk is full")
    assert [v.metrics["accuracy"] for v in record.validations] == [50.0] and record.best == 50.0
    assert record.time_to_accuracy is None
    assert keys == ["run_configuration", "validation", "run_result", "run_stop"]


def test_a_worker_that_dies_after_the_result_changes_nothing(
    root: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = WorkerResult(status="completed", nodes=[node.describe()])
    fails(WorkersFailed("rank 1 died"), monkeypatch, trained=True, result=result)
    record = execute.execute(logreg(root, data_root, "goal=none"))
    assert (record.status, record.error) == ("completed", None)
    assert left(root)[0] == record and len(record.nodes) == 1


def test_a_record_that_cannot_be_written_leaves_the_run_to_sync(
    root: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes to MLflow would else have the run for as long as this process lives."""
    fails(UserError("no room"), monkeypatch)
    with monkeypatch.context() as full:
        full.setattr(Record, "save", lambda *_: os.statvfs("/proc/full disk"))
        with pytest.raises(FileNotFoundError):
            execute.execute(logreg(root, data_root))
    (log,) = root.glob("*/events.jsonl")
    until(lambda: not any(thread.name == "mlflow" for thread in threading.enumerate()))
    os.close(uploader.lock(log.parent))
    assert [run.outcome for run in sync.sync_runs(root, None)] == ["uploaded"]
    assert left(root)[0].status == "failed"


def own_files(folder: Path, *, rows: int) -> tuple[str, ...]:
    """Write LIBSVM files of the user's own; return the words that name them, relative to the folder."""
    folder.mkdir(exist_ok=True)
    for name in ("train", "test"):
        (folder / name).write_text("1 1:1 2:0.5\n-1 1:0.25 2:1\n" * rows)
    return "division=open", "task.train_file=train", "task.test_file=test"


def measured(root: Path, wanted: Experiment, *overrides: str, data: str | None) -> Record:
    """Leave a finished run of the experiment in output_root."""
    finished = Run(root, *overrides)
    assert identity.key(finished.experiment) == identity.key(wanted)
    finished.validate(50.0)
    return finished.end("goal_not_reached", data_hash=data)


def test_a_run_stands_for_another_only_on_the_same_data(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(UserError("it is measured again"), monkeypatch)
    overrides = own_files(tmp_path / "a", rows=2)
    own_files(tmp_path / "b", rows=3)
    wanted = logreg(root, tmp_path / "data", *overrides)
    monkeypatch.chdir(tmp_path / "a")
    before = measured(root, wanted, *overrides, data=execute.check_data(wanted))
    assert execute.execute(wanted) == before
    monkeypatch.chdir(tmp_path / "b")  # the same words, another file
    with pytest.raises(UserError, match="measured again"):
        execute.execute(wanted)
    monkeypatch.chdir(tmp_path / "a")
    assert execute.execute(wanted) == before
    own_files(tmp_path / "a", rows=4)
    with pytest.raises(UserError, match="measured again"):
        execute.execute(wanted)


def test_nobody_knows_a_user_s_files_on_the_nodes_of_a_cluster(root: Path, tmp_path: Path) -> None:
    overrides = own_files(tmp_path / "a", rows=2)
    wanted = logreg(root, tmp_path / "data", "cluster=attached", *overrides)
    measured(root, wanted, "cluster=attached", *overrides, data="d")
    assert execute.find_cached(wanted) is None


def test_small_data_is_compared_and_official_data_where_it_is_prepared(
    root: Path, data_root: Path, tmp_path: Path
) -> None:
    small = logreg(root, data_root)
    measured(root, small, data="other")
    assert execute.find_cached(small) is None
    official = logreg(tmp_path / "official", tmp_path / "empty", "scale=official")
    there = measured(tmp_path / "official", official, "scale=official", data="d")
    assert execute.find_cached(official) == there
    assert not (tmp_path / "empty").exists()


def test_a_task_without_data_is_reused_on_the_same_kind_of_cluster(root: Path, tmp_path: Path) -> None:
    overrides = ("task=allreduce", "goal=none")
    assert execute.find_cached(logreg(root, tmp_path / "data", *overrides)) is None
    there = Run(root, *overrides).end("completed")
    assert execute.find_cached(logreg(root, tmp_path / "data", *overrides)) == there
    for other in ("cluster=attached", "division=open"):
        assert execute.find_cached(logreg(root, tmp_path / "data", *overrides, other)) is None


@pytest.mark.parametrize("run_id", ["", "/", "..", "a/b"])
def test_what_a_pod_prints_names_no_folder_but_a_run_s(root: Path, run_id: str, as_stored: Any) -> None:
    """Anything that runs there may print it, and the folder of a run that is followed again is replaced."""
    (root / "run-1").mkdir(parents=True)
    copy = remote_run.Copy(compose.compose(["task=logreg", f"output_root={root}"]), SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(SubmissionLost, check=as_stored):
        copy.add({"key": "run_configuration", "value": {"run_id": run_id}})
    assert (root / "run-1").is_dir()


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ({"detach": "true", "retries": "2"}, True),
        ({"attach": "a", "retries": "2"}, True),
        ({"detach": "true", "attach": "a"}, True),
        ({}, False),
        ({"retries": "2"}, False),
        ({"detach": "true"}, False),
    ],
)
def test_words_of_a_submission_of_which_one_would_be_ignored_are_refused(
    words: dict[str, str], refused: bool
) -> None:
    settings = {"detach": "false", "attach": "", "retries": "0", "down_after": ""} | words
    if not refused:
        parsed = remote_run.SubmitSettings.parse(settings)
        assert (parsed.detach, parsed.retries) == ("detach" in words, int(settings["retries"]))
        return
    with pytest.raises(UserError) as caught:
        remote_run.SubmitSettings.parse(settings)
    assert all(f"{name}={value}" in str(caught.value) for name, value in words.items())


def test_an_output_root_that_is_a_link_to_nothing_is_told(tmp_path: Path) -> None:
    link = tmp_path / "runs"
    link.symlink_to(tmp_path / "not mounted")
    with pytest.raises(UserError, match=f"cannot make {link}: File exists"):
        execute.new_folder(logreg(link, tmp_path), 7, clock.wall())

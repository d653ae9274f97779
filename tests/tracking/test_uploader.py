"""MLflow gets everything exactly once, whatever dies on the way, and nothing waits for it."""

import errno
import fcntl
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import driven
import pytest
import yaml
from commands import PATIENCE_S, until
from driven import BEGUN, EPOCH_S, STARTED, UPDATES, Run
from tracking_server import Server, wait_for

from mlbench.clusters import node
from mlbench.config import compose, identity
from mlbench.config.experiment import Experiment
from mlbench.config.store_uri import default_store
from mlbench.launch import cache
from mlbench.record import events, reader, record, temporary_folder
from mlbench.record.record import Node
from mlbench.terminal import show
from mlbench.tracking import mapping, sync, uploader
from mlbench.tracking.client import TrackingClient, open_client

# MLflow 3.17 uses what SQLAlchemy 2.1 deprecates.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]

SECRET = "hunter2"
TESTS = Path(__file__).parents[1]


def client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def runs(uri: str) -> list[Any]:
    """Return all runs of the store's experiment, as MLflow's own client sees them."""
    experiment = client(uri).get_experiment_by_name("mlbench")
    return list(client(uri).search_runs([experiment.experiment_id])) if experiment else []


def only(uri: str) -> Any:
    (run,) = runs(uri)
    return run


def outcomes(output_root: Path, uri: str | None = None) -> dict[str, str]:
    return {run.run_id: run.outcome for run in sync.sync_runs(output_root, uri)}


def experiment(output_root: Path, seed: int) -> Experiment:
    return compose.compose(["task=logreg", "workers=2", f"output_root={output_root}", f"seed={seed}"])


@pytest.fixture
def root(tmp_path: Path, empty_store: Path) -> Path:
    """An output_root with an empty store."""
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


@pytest.fixture(scope="module", autouse=True)
def _eager() -> Iterator[None]:
    """Let the uploader's thread look at once and compute like any other: one that yields to all waits."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uploader, "LOWEST_PRIORITY", 0)
        patched.setattr(uploader, "POLL_S", 0.1)
        yield


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> tuple[Run, Any]:
    """One run that reached its goal, mirrored into SQLite, and MLflow's view of it."""
    output = tmp_path_factory.mktemp("runs")
    shutil.copy(empty_store, output / "mlflow.db")
    run = Run(output, "goal=85", "division=open")
    uri = run.experiment.store
    mirror = uploader.MlflowUploader(run.folder, uri, draw=show.Terminal().figures)
    mirror.start()
    run.validate(70.0, system=[driven.sample(STARTED + 1), driven.sample(STARTED + 3)])
    run.validate(86.5)
    run.end("goal_reached")
    assert mirror.finish(wait=PATIENCE_S) == only(uri).info.run_id
    return run, only(uri)


def writing() -> list[threading.Thread]:
    """Return the threads that write to MLflow."""
    return [thread for thread in threading.enumerate() if thread.name == "mlflow"]


def test_while_workers_train_the_thread_yields_to_them_and_not_once_they_have_ended(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a thread that yields to all does not write in a minute what takes two seconds."""
    monkeypatch.setattr(uploader, "LOWEST_PRIORITY", 19)
    run, looked, own = Run(root), threading.Event(), os.getpriority(os.PRIO_PROCESS, 0)

    def look(_: Any) -> None:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        looked.set()

    niceness: list[int] = []
    monkeypatch.setattr(uploader.RunUpload, "advance", look)
    mirror = uploader.MlflowUploader(run.folder, run.experiment.store)
    mirror.start()
    assert looked.wait(PATIENCE_S)
    mirror.finish(wait=PATIENCE_S)
    assert niceness == [19, own] and os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_run_has_its_times_status_tags_and_configuration(mirrored: tuple[Run, Any]) -> None:
    run, seen = mirrored
    assert (seen.info.status, seen.info.run_name) == ("FINISHED", "logreg mini 2w gloo 7")
    assert seen.info.start_time == BEGUN * 1000
    assert seen.info.end_time == (STARTED + 2 * EPOCH_S + 1) * 1000
    wanted = {"task": "logreg", "scale": "mini", "division": "open", "goal": "85.0", "hardware": "local"}
    wanted |= {"target": "accuracy >= 85", "backend": "gloo", "workers": "2", "oversubscribed": "false"}
    wanted |= {"status": "goal_reached", "seed": "7", "key": identity.key(run.experiment)}
    assert wanted.items() <= seen.data.tags.items()
    assert seen.data.params["task.batch_size"] == str(run.experiment.plain()["task"]["batch_size"])
    assert "hardware.price" not in seen.data.params  # it has none
    assert seen.data.params["seed"] == "7"


def history(run: Run, mlflow_id: str, name: str) -> list[tuple[float, int, int]]:
    """Return value, time in ms and step of each point of a metric."""
    points = client(run.experiment.store).get_metric_history(mlflow_id, name)
    return [(point.value, point.timestamp, point.step) for point in points]


def test_validations_have_the_time_at_which_they_were_made_and_system_metrics_their_own(
    mirrored: tuple[Run, Any],
) -> None:
    run, seen = mirrored
    assert history(run, seen.info.run_id, "validation/accuracy") == [
        (70.0, (STARTED + EPOCH_S) * 1000, UPDATES),
        (86.5, (STARTED + 2 * EPOCH_S) * 1000, 2 * UPDATES),
    ]
    system = history(run, seen.info.run_id, "system/cpu_utilization_percentage")
    assert [point[1:] for point in system] == [((STARTED + 1) * 1000, 1), ((STARTED + 3) * 1000, 3)]


def test_a_series_has_the_samples_since_the_start_and_each_interval_its_own_numbers(
    mirrored: tuple[Run, Any],
) -> None:
    run, seen = mirrored

    def series(name: str) -> list[tuple[int, float]]:
        return [(step, value) for value, _, step in history(run, seen.info.run_id, name)]

    both = 2 * 128 * UPDATES  # samples of two ranks between two validations
    assert series("training/samples") == [(UPDATES, both), (2 * UPDATES, 2 * both)]
    forward = 1.5 * driven.BATCH_S["forward"]
    assert series("interval/forward_s") == [(UPDATES, forward), (2 * UPDATES, forward)]
    assert series("training/elapsed_s") == [(UPDATES, EPOCH_S), (2 * UPDATES, 2 * EPOCH_S)]
    assert series("training/loss") == [(UPDATES, 1.0), (2 * UPDATES, 0.5)]


def test_samples_go_on_in_what_is_written_later_and_are_not_counted_twice_after_a_refusal(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(root)
    upload = uploader.RunUpload(run.folder, run.experiment.store)
    run.validate(50.0)
    upload.advance()
    run.validate(60.0)
    with monkeypatch.context() as refusing:
        refusing.setattr(TrackingClient, "log", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            upload.advance()
    upload.advance()
    assert upload.run is not None
    samples = [value for value, *_ in history(run, upload.run, "training/samples")]
    assert samples == [256.0 * UPDATES, 512.0 * UPDATES]


def test_numbers_of_two_ranks_are_joined(mirrored: tuple[Run, Any]) -> None:
    _, seen = mirrored
    numbers = seen.data.metrics
    assert numbers["interval/forward_s"] == pytest.approx(1.5 * driven.BATCH_S["forward"])
    assert numbers["phase/forward_s"] == pytest.approx(3.0 * driven.BATCH_S["forward"])
    # Both ranks' samples over the slower rank's time.
    slowest = 2 * sum(driven.BATCH_S.values())
    assert numbers["training/samples_per_s"] == pytest.approx(2 * UPDATES * 128 / slowest)
    shares = [value for name, value in numbers.items() if name.startswith("share/")]
    assert sum(shares) == pytest.approx(1.0)
    assert numbers["time_to_accuracy_s"] == 2 * EPOCH_S


def test_the_files_of_a_run_are_all_there(mirrored: tuple[Run, Any], tmp_path: Path) -> None:
    run, seen = mirrored
    assert Path(seen.info.artifact_uri.removeprefix("file://")).is_relative_to(run.folder.parent)
    root = Path(client(run.experiment.store).download_artifacts(seen.info.run_id, "", str(tmp_path)))
    names = {path.name for path in root.iterdir()}
    figures = {"validation.png", "training_loss.png", "phases.png"}
    texts = {"config.yaml", "events.jsonl", "record.json", "result.txt"}
    assert names == figures | texts
    assert (root / "record.json").read_bytes() == (run.folder / "record.json").read_bytes()
    assert events.read(root / events.NAME) == events.read(run.log)
    assert yaml.safe_load((root / "config.yaml").read_text()) == run.experiment.plain()
    line = (root / "result.txt").read_text()
    assert line.startswith("85% Top 1 Validation") and "reached in 8.000 seconds" in line


def test_a_finished_run_is_found_by_key_and_seed(mirrored: tuple[Run, Any]) -> None:
    run, _ = mirrored
    same = run.experiment.model_copy(update={"seed": 7})
    result = cache.find_cached(same, data=None)
    assert result == reader.load(run.folder / "record.json")
    assert cache.find_cached(run.experiment.model_copy(update={"seed": 8}), data=None) is None
    assert cache.find_cached(same.model_copy(update={"workers": 4}), data=None) is None


def test_a_run_on_other_data_does_not_stand_for_this_one(root: Path) -> None:
    run = Run(root)
    run.end("goal_not_reached", data_hash="old")
    for data in ("old", None):
        result = cache.find_cached(experiment(root, 7), data=data)
        assert result is not None and result.run_id == "run-7"
    assert cache.find_cached(experiment(root, 7), data="new") is None


HERE = {"hostname": "here", "cpu_model": "EPYC", "usable_cpus": 3, "gpus": [{"name": "H200"}], "warnings": []}


def in_the_store_alone(
    root: Path, *overrides: str, name: str = "run", begun: float = BEGUN, **more: Any
) -> None:
    """Leave a finished run in the store and no folder of it."""
    run = Run(root, *overrides, name=name)
    run.log.unlink()
    events.append(run.log, "run_configuration", run.start | {"begun": begun})
    run.end("goal_not_reached", **more)
    assert outcomes(root) == {f"{name}-7": "uploaded"}
    shutil.rmtree(run.folder)


@pytest.mark.parametrize(
    ("overrides", "changes", "stands"),
    [
        ((), {}, True),
        ((), {"cpu_model": "Xeon"}, False),
        (("hardware=gcp_n1_standard_4",), {"cpu_model": "Xeon"}, False),
    ],
)
def test_another_machine_s_time_is_not_taken_from_a_shared_store(
    root: Path,
    overrides: tuple[str, ...],
    changes: dict[str, Any],
    stands: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node, "describe", lambda: Node.model_validate(HERE))
    in_the_store_alone(root, *overrides, data_hash="d", nodes=[HERE | changes, HERE | changes])
    same = Run(root, *overrides, name="same").experiment.model_copy(update={"seed": 7})
    result = cache.find_cached(same, data="d")
    assert (result is not None) == stands
    assert cache.find_cached(same, data="other") is None


def test_an_own_run_is_found_behind_another_machine_s_newer_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "describe", lambda: Node.model_validate(HERE))
    in_the_store_alone(root, name="mine", nodes=[HERE])
    in_the_store_alone(root, name="theirs", begun=BEGUN + 5, nodes=[HERE | {"cpu_model": "Xeon"}])
    result = cache.find_cached(experiment(root, 7), data=None)
    assert result is not None and result.run_id == "mine-7"


def test_a_database_tells_the_complete_runs_as_mlflow_does(root: Path) -> None:
    uri = f"sqlite:///{root / 'mlflow.db'}"
    here = open_client(uri, artifacts=root / "artifacts")
    assert here is not None
    elsewhere = TrackingClient(here.mlflow, here.experiment_id, "http://mlflow:5000")  # asks MLflow
    for name, complete in (("a", "true"), ("b", "true"), ("c", "false"), ("d", None)):
        tags = {mapping.RUN_ID: name} | ({mapping.COMPLETE: complete} if complete else {})
        run = here.open_run(name, name=name, start_time=1.0, tags=tags)
        if name == "b":
            here.mlflow.delete_run(run)
    other = here.mlflow.create_experiment("another")
    here.mlflow.create_run(other, tags={mapping.RUN_ID: "e", mapping.COMPLETE: "true"})
    assert here.complete(page_s=60) == elsewhere.complete(page_s=60) == {"a", "b"}
    with closing(sqlite3.connect(root / "mlflow.db")) as database:
        database.execute("ALTER TABLE tags RENAME COLUMN value TO renamed")
    with pytest.raises(Exception, match="value"):  # MLflow was asked, which needs the column itself
        here.complete(page_s=60)


def test_no_run_that_failed_is_called_finished(root: Path) -> None:
    statuses = {
        "goal_not_reached": "FINISHED",
        "diverged": "FAILED",
        "failed": "FAILED",
        "interrupted": "KILLED",
    }
    for seed, status in enumerate(statuses):
        run = Run(root, seed=seed)
        run.validate(50.0)
        run.end(status, error="x" * 20_000 if status == "failed" else None)
    assert set(outcomes(root).values()) == {"uploaded"}
    uri = default_store(root)
    seen = {run.data.tags["status"]: run for run in runs(uri)}
    assert {status: run.info.status for status, run in seen.items()} == statuses
    errors = {status: len(run.data.tags["error"]) for status, run in seen.items() if "error" in run.data.tags}
    assert errors == {"failed": 8000}, "it is cut to what MLflow takes"
    for seed, status in enumerate(statuses):
        files = client(uri).list_artifacts(seen[status].info.run_id)
        assert "result.txt" not in {file.path for file in files}
        result = cache.find_cached(experiment(root, seed), data=None)
        assert (result.status if result else None) == (status if status in record.FINISHED else None)


def test_without_a_store_or_with_a_broken_one_nothing_is_found_and_none_is_made(tmp_path: Path) -> None:
    wanted = experiment(tmp_path / "runs", 7)
    assert cache.find_cached(wanted, data=None) is None and list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mlflow.db").write_text("not a database" * 100)
    assert cache.find_cached(wanted, data=None) is None


def test_a_run_written_half_way_is_completed_not_duplicated(root: Path) -> None:
    run = Run(root)
    run.validate(50.0)
    run.validate(60.0)
    run.end("goal_not_reached")

    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    uri = run.experiment.store
    with pytest.raises(OSError, match="No space"):  # after params, metrics and tags were written
        uploader.RunUpload(run.folder, uri, draw=full_disk).advance()
    assert only(run.experiment.store).info.status == "RUNNING"
    assert outcomes(root) == {run.folder.name: "uploaded"}
    seen = only(run.experiment.store)
    assert seen.info.status == "FINISHED"
    assert [value for value, *_ in history(run, seen.info.run_id, "validation/accuracy")] == [50.0, 60.0]


def test_a_record_that_is_lost_is_made_again_and_does_not_spoil_the_one_in_the_store(root: Path) -> None:
    run = Run(root)
    run.validate(90.0)
    made = run.end("goal_reached")
    (run.folder / "record.json").unlink()
    assert outcomes(root) == {"run-7": "uploaded"}
    assert reader.load(run.folder / "record.json") == made, "it was lost everywhere"
    (run.folder / "record.json").unlink()
    uri = run.experiment.store
    assert sync.upload(run.folder, "run-7", uri).outcome == "present"
    assert reader.load(run.folder / "record.json") == made
    assert only(uri).data.tags["status"] == "goal_reached"


DRIVER = """
import sys, time
from pathlib import Path
from driven import Run
from mlbench.tracking import uploader
run = Run(Path(sys.argv[1]))
mirror = uploader.MlflowUploader(run.folder, run.experiment.store)
mirror.start()
run.validate(50.0)
print("begun", flush=True)
time.sleep(600)
"""


def test_a_run_is_left_to_its_driver_until_that_is_killed(root: Path) -> None:
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(root)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    with driver:
        try:
            assert driver.stdout is not None and driver.stdout.readline() == b"begun\n"
            assert outcomes(root) == {"run-7": "running"}
        finally:
            driver.kill()
    assert outcomes(root) == {"run-7": "uploaded"}
    uri = default_store(root)
    seen = only(uri)
    assert (seen.info.status, seen.data.tags["status"]) == ("KILLED", "interrupted")
    result = reader.load(root / "run-7" / "record.json")
    assert [v.metrics["accuracy"] for v in result.validations] == [50.0]
    assert result.time_to_accuracy is None
    assert outcomes(root) == {"run-7": "present"}


def test_a_server_that_never_answers_delays_nothing(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # connects, and says no word
        uri = f"http://127.0.0.1:{mute.getsockname()[1]}"
        run = Run(root, f"tracking_uri={uri}")
        mirror = uploader.MlflowUploader(run.folder, uri)
        mirror.start()
        run.validate(50.0)
        run.end("goal_not_reached")
        assert mirror.finish(wait=0.5) is None
        assert writing(), "it was not waited for: MLflow itself would wait for minutes"
    until(lambda: not writing())
    assert outcomes(root, default_store(root)) == {"run-7": "uploaded"}


def test_no_password_reaches_mlflow(root: Path) -> None:
    address = f"http://me:{SECRET}@localhost:1"
    run = Run(root, f"tracking_uri={address}")
    run.validate(50.0)
    run.end("failed", error=f"no answer from {address}")
    uri = default_store(root)
    assert outcomes(root, uri) == {"run-7": "uploaded"}
    seen = only(uri)
    assert seen.data.params["tracking_uri"] == "http://localhost:1"
    assert SECRET not in json.dumps(seen.data.to_dictionary())
    root = client(uri).download_artifacts(seen.info.run_id, "", str(root))
    for path in Path(root).iterdir():
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_an_experiment_that_was_deleted_takes_runs_again(root: Path) -> None:
    """MLflow keeps its name, and adds no run to it."""
    uri = default_store(root)
    opened = open_client(uri, artifacts=root / "artifacts")
    assert opened is not None
    opened.mlflow.delete_experiment(opened.experiment_id)
    assert open_client(uri, artifacts=None) is None
    Run(root).end("failed", error="x")
    assert outcomes(root, uri) == {"run-7": "uploaded"}


def test_a_run_is_measured_where_files_cannot_be_locked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    folder = root / "run"
    folder.mkdir(parents=True)
    descriptor = uploader.lock(folder)
    os.write(descriptor, b"\n")  # NFS locks no file that is not open for writing
    os.close(descriptor)
    monkeypatch.setattr(fcntl, "flock", refuse)
    os.close(uploader.lock(folder))
    monkeypatch.setenv("RAY_TMPDIR", str(root))
    path, lock = temporary_folder.create()
    assert lock is None and list(root.glob(f"{temporary_folder.PREFIX}*")) == [path]


def test_system_metrics_of_several_nodes_are_told_apart() -> None:
    metadata = {"started_at": STARTED, "phase_times": [driven.phase_times(1.0)]}
    metadata["system"] = [driven.sample(STARTED + 2.4, node=f"node_{n}") for n in (0, 1)]
    validation = {"metrics": {}, "epoch": 1.0, "elapsed": 4.0, "train_loss": None, "wall": 1.0, "step": 9}
    event = {"key": "validation", "value": validation, "metadata": metadata}
    metrics, _ = mapping.validation_metrics([event])
    names = [metric.name for metric in metrics if metric.name.startswith("system/")]
    assert names == [f"system/node_{n}/cpu_utilization_percentage" for n in (0, 1)]
    assert {metric.step for metric in metrics if metric.name in names} == {2}


@pytest.fixture
def server(tmp_path: Path, empty_store: Path) -> Iterator[Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    shutil.copy(empty_store, folder / "server.db")
    server = Server(folder)
    server.start()
    yield server
    server.kill()


def test_a_server_killed_in_the_middle_of_a_run_costs_nothing(server: Server, root: Path) -> None:
    run = Run(root, f"tracking_uri={server.uri}")
    mirror = uploader.MlflowUploader(run.folder, server.uri)
    mirror.start()
    run.validate(50.0)
    live = wait_for(lambda: [r for r in runs(server.uri) if "validation/accuracy" in r.data.metrics])
    assert live[0].info.status == "RUNNING" and live[0].data.tags["status"] == "running"
    server.kill()
    run.validate(60.0)
    wait_for(lambda: mirror.error)
    run.end("goal_not_reached")
    assert mirror.finish(wait=PATIENCE_S) is None
    assert not writing(), "a store that refuses is not waited for"
    keys = [event["key"] for event in events.read(run.log)]
    assert keys == ["run_configuration", "validation", "validation", "run_result", "run_stop"]

    server.start()
    assert only(server.uri).info.status == "RUNNING"
    assert outcomes(root) == {"run-7": "uploaded"}
    assert outcomes(root) == {"run-7": "present"}
    seen = only(server.uri)
    assert seen.info.run_id == live[0].info.run_id
    assert (seen.info.status, seen.data.tags["status"]) == ("FINISHED", "goal_not_reached")
    assert [value for value, *_ in history(run, seen.info.run_id, "validation/accuracy")] == [50.0, 60.0]
    assert cache.find_cached(run.experiment.model_copy(update={"seed": 7}), data=None) is not None


def test_a_store_is_made_and_imported_before_a_training(tmp_path: Path) -> None:
    """Beside it, the seconds that both take slowed a script of 18 s down by 5 % on two cores."""
    code = f"""
import sys
from pathlib import Path
from mlbench.tracking import client
uri = "sqlite:///{tmp_path}/mlflow.db"
artifacts = Path({str(tmp_path / "artifacts")!r})
made = client.preload(uri, artifacts=artifacts)
assert not any(Path({str(tmp_path)!r}).iterdir())
before = set(sys.modules)
client.place(made, uri)
store = client.open_client(uri, artifacts=artifacts)
assert Path(store.uri.removeprefix("sqlite:///")).read_bytes() == made
assert client.preload(uri, artifacts=artifacts) is None
client.place(b"another", uri)
assert [path.read_bytes() for path in Path({str(tmp_path)!r}).iterdir()] == [made]
print(len(before), len(set(sys.modules) - before))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    before, late = map(int, output.split())
    assert late < before / 50, f"{late} of {before} modules"

"""`results sync` as a command of its own process, and on output folders in which something is damaged."""

import getpass
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from driven import Run
from zips import with_store

from mlbench import results
from mlbench.config import compose
from mlbench.config.errors import UserError
from mlbench.config.store_uri import default_store
from mlbench.record import events, study
from mlbench.tracking import parent_runs, sync

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")


def with_tables(output_root: Path, count: int) -> None:
    """Leave runs with a table each, as logreg does; tables are written with pyarrow."""
    for seed in range(1, count + 1):
        run = Run(output_root, seed=seed)
        run.validate(90.0)
        run.end("goal_reached", table=[{"kind": "convergence", "validation": 1, "objective": 0.5}])


RUNS = 2


@pytest.mark.slow
def test_tables_of_several_runs_are_uploaded_by_one_process(tmp_path: Path, empty_store: Path) -> None:
    """It ended with SIGSEGV at the second table: pyarrow was first used in a thread that had ended."""
    root = with_store(tmp_path / "runs", empty_store)
    with_tables(root, RUNS)
    command = [sys.executable, "-m", "mlbench.results", "sync", f"output_root={root}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, [f"{RUNS} uploaded"]), ended.stderr
    assert len(list((root / "artifacts").rglob("phases.png"))) == RUNS


def opened(folder: Path, value: Any) -> None:
    """Give a run's log another first event."""
    first, *rest = (folder / events.NAME).read_text().splitlines(keepends=True)
    line = json.dumps(json.loads(first) | {"value": value}) + "\n"
    (folder / events.NAME).write_text("".join([line, *rest]))


DAMAGES: dict[str, Callable[[Run], Any]] = {
    "a list": lambda run: opened(run.folder, ["run"]),
    "no experiment": lambda run: opened(run.folder, {"run_id": run.folder.name}),
    "no run id": lambda run: opened(run.folder, run.start | {"run_id": ["run-2"]}),
    "a store that is no text": lambda run: opened(
        run.folder, run.start | {"experiment": run.start["experiment"] | {"tracking_uri": 7}}
    ),
    "workers that nobody has": lambda run: opened(
        run.folder, run.start | {"experiment": run.start["experiment"] | {"workers": -1}}
    ),
    "another shape": lambda run: opened(
        run.folder, {"run_id": run.folder.name, "experiment": {"tracking_uri": None}}
    ),
}


@pytest.mark.slow
def test_damaged_logs_keep_no_other_run_out(
    tmp_path: Path, empty_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runs before and after them are uploaded, and each of them is told and can be deleted."""
    root = with_store(tmp_path / "runs", empty_store)
    damages = dict(enumerate(DAMAGES.values(), start=2))
    whole = (1, len(damages) + 2)
    for seed in (*whole, *damages):
        run = Run(root, seed=seed)
        run.validate(90.0)
        if seed in whole:
            run.end("goal_reached")
        else:
            damages[seed](run)
    (root / "torn").mkdir()  # a run that was killed while it wrote its first line
    (root / "torn" / events.NAME).write_text('{"key": "run_conf')
    where = f"output_root={root}"
    assert results.main(["sync", where]) == 1
    answers = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines()[:-1])
    assert {name for name, answer in answers.items() if answer == "uploaded"} == {f"run-{n}" for n in whole}
    assert len(answers) == len(damages) + 2
    for seed in damages:
        answer = answers[f"run-{seed:x}"]
        assert answer.startswith("failed: ") and "damaged" in answer, list(DAMAGES)[seed - 2]
        assert results.main(["delete", f"run-{seed:x}", where, "--yes"]) == 0
    assert sorted(path.name for path in root.glob("run-*")) == sorted(f"run-{n}" for n in whole)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.slow
def test_records_that_cannot_be_read_are_told_and_made_again_from_their_logs(
    tmp_path: Path, empty_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where MLflow has the runs already."""
    contents = ('{"table": ' + DEEP + "}", "{")
    root = with_store(tmp_path / "runs", empty_store)
    with_tables(root, len(contents) + 1)
    where = f"output_root={root}"
    paths = [root / f"run-{seed}" / "record.json" for seed in range(1, len(contents) + 1)]
    whole = [path.read_text() for path in paths]
    assert results.main(["sync", where]) == 0
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    capsys.readouterr()
    assert results.main(["list", where, "--json"]) == 0
    shown = capsys.readouterr()
    assert [row["run"] for row in json.loads(shown.out)] == [f"run-{len(contents) + 1}"]
    assert all(f"{path} is damaged" in shown.err for path in paths)
    assert results.main(["show", paths[0].parent.name, where]) == 2
    assert results.main(["verify", where]) == 1
    assert "is damaged" in capsys.readouterr().err
    assert results.main(["sync", where]) == 0
    assert [path.read_text() for path in paths] == whole


def test_a_store_that_is_down_keeps_no_run_of_another_out(
    tmp_path: Path, empty_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = with_store(tmp_path / "runs", empty_store)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for seed, overrides in ((1, [f"tracking_uri=http://127.0.0.1:{port}"]), (2, [])):
        run = Run(root, *overrides, seed=seed)
        run.validate(90.0)
        made = run.end("goal_reached")
        point = study.StudyPoint(key=made.key, overrides=(), seeds=(seed,))
        plan = study.new(f"of-{seed}", question="?").model_copy(update={"points": (point,)})
        study.save(plan, study.folder(root, plan.name))
    assert results.main(["sync", f"output_root={root}"]) == 1
    shown = capsys.readouterr()
    lines, down = shown.out.splitlines(), f"the MLflow store http://127.0.0.1:{port} does not answer"
    assert down in lines[0] and f"study of-1: failed: {down}" in shown.err
    assert lines[1:] == ["run-2: uploaded", "study of-2: written", "1 uploaded, 1 failed"]


def test_a_study_that_lacks_runs_is_not_called_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose sweep was ended, e.g. with Ctrl-C, was FINISHED in MLflow after the next sync."""
    run = Run(tmp_path, seed=1)
    run.validate(90.0)
    key, statuses = run.end("goal_reached").key, list[str]()
    summary = parent_runs.Summary((), {}, "")
    monkeypatch.setattr(parent_runs, "write", lambda *_, status, **__: statuses.append(status))
    for seeds in ((1, 2), (1,)):
        point = study.StudyPoint(key=key, overrides=(), seeds=seeds)
        plan = study.new("s", question="?").model_copy(update={"points": (point,)})
        study.save(plan, study.folder(tmp_path, "s"))
        assert list(sync.sync_studies(tmp_path, None, summarize=lambda *_: summary)) == [("s", "")]
    assert statuses == ["FAILED", "FINISHED"]


@pytest.mark.parametrize(
    ("uri", "way_out"),
    [
        ("./mlruns", "tracking_uri=sqlite:///./mlruns/mlflow.db"),
        ("mlflow-host:5000", "tracking_uri=http://mlflow-host:5000"),
        ("mssql+nodriver://host/db", "pip install nodriver"),
    ],
)
def test_a_store_that_can_never_open_is_told_before_a_run_and_after_one(
    uri: str, way_out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as error:
        compose.compose([f"tracking_uri={uri}"])
    assert way_out in str(error.value)
    run = Run(tmp_path)
    run.start["experiment"]["tracking_uri"] = uri  # of a run that was begun when nothing told it
    opened(run.folder, run.start)
    run.validate(90.0)
    run.end("goal_reached")
    where = f"output_root={tmp_path}"
    assert results.main(["sync", where]) == 1
    assert way_out in capsys.readouterr().out
    for arguments in (["delete", "run-7", "--yes"], ["mlflow", f"tracking_uri={uri}"]):
        assert results.main([*arguments, where]) == 2
        assert way_out in capsys.readouterr().err


def test_a_trace_that_is_a_link_is_not_uploaded(tmp_path: Path, empty_store: Path) -> None:
    root = with_store(tmp_path / "runs", empty_store)
    run = Run(root)
    run.validate(90.0)
    trace = run.folder / "profile" / "rank0.trace.json"
    trace.parent.mkdir()
    (tmp_path / "secret").write_text("hunter2")
    trace.symlink_to(tmp_path / "secret")
    run.end("goal_reached", profile={"steps": 1, "files": ["profile/rank0.trace.json"]})
    assert results.main(["sync", f"output_root={root}"]) == 0
    assert list((root / "artifacts").rglob("record.json"))
    assert not list((root / "artifacts").rglob("rank0*"))


def test_a_full_disk_at_the_end_names_the_file_and_the_way_out(tmp_path: Path) -> None:
    run = Run(tmp_path)
    made = run.end("failed", error="it broke")
    part = run.folder / "record.json.part"
    part.symlink_to("/dev/full")
    with pytest.raises(UserError, match="record.json: .*results sync"):
        made.save(run.folder)
    assert not part.is_symlink()


@pytest.mark.slow
def test_a_run_in_mlflow_has_its_user_units_and_an_address_in_the_mode_for_model_training(
    tmp_path: Path, empty_store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    root = with_store(tmp_path / "runs", empty_store)
    run = Run(root, seed=3)
    run.validate(90.0)
    run.end("goal_reached")
    assert {result.outcome for result in sync.sync_runs(root, None)} == {"uploaded"}
    experiment, mlflow_id = sync.location(default_store(root), run.folder.name, upload="sync")
    monkeypatch.setattr(results.store, "_serve", lambda _, address: print(address) or 0)  # no server
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert results.main(["mlflow", run.folder.name, f"output_root={root}", f"port={port}"]) == 0
    fragment = f"#/experiments/{experiment}/runs"
    mode = "workflowType=machine_learning"
    assert capsys.readouterr().out.strip() == f"http://127.0.0.1:{port}/{fragment}/{mlflow_id}?{mode}"
    client = MlflowClient(default_store(root))
    data = client.get_run(mlflow_id).data
    assert data.tags["mlflow.user"] == getpass.getuser()
    assert f"[All runs]({fragment}?{mode}" in data.tags["mlflow.note.content"]
    assert {"time_to_accuracy_s", "wall_s", "seconds_per_epoch", "phase/forward_s"} <= set(data.metrics)
    assert client.get_experiment(experiment).tags["mlflow.experimentKind"] == "custom_model_development"
    with pytest.raises(UserError, match="no run-9.*results sync"):
        sync.location(default_store(root), "run-9", upload="results sync")

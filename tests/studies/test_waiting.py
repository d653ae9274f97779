"""A trial that waits for another run on this machine: a real command, and a lock that this test holds."""

import io
import os
import signal
import threading
from pathlib import Path

import pytest
from commands import until
from rich.console import Console

from mlbench.clusters import machine_lock
from mlbench.launch import execute
from mlbench.record import events, study
from mlbench.studies import session
from mlbench.studies.budget import Budget
from mlbench.studies.spec import compose_points, read
from mlbench.studies.tune import StudyMonitor, TrialContext, TuneThread, run_trial
from mlbench.terminal.sweep_view import PointProgress, SweepView
from mlbench.tracking import parent_runs
from mlbench.tracking.client import open_client


@pytest.mark.slow
def test_a_trial_that_waits_is_shown_as_waiting_and_ctrl_c_makes_it_interrupted(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(machine_lock.PATH, str(tmp_path / "lock"))
    overrides = ["task=logreg", "workers=1", f"output_root={tmp_path}", f"data_root={data_root}", "repeats=1"]
    spec = read(overrides)
    result = session.load_results(spec)
    plan, _, experiments = session.extended_plan(spec, result.study, compose_points(spec))
    study.save(plan, result.folder)
    (trial,) = study.trials(plan)
    context = TrialContext(
        trials={trial.id: trial},
        experiments=experiments,
        output_settings=(*spec.output_settings.values(), f"study={plan.name}"),
        folder=result.folder,
        output_root=tmp_path,
        directory=tmp_path,
        environment=dict(os.environ),
        sweep="now",
        limits={},
    )
    console = Console(file=io.StringIO(), width=100)
    view = SweepView([PointProgress(" ".join(trial.point.overrides), 1)], console=console)
    monitor = StudyMonitor({trial.id: trial}, Budget(experiments), folder=result.folder, progress=view)
    holder = machine_lock.MachineLock().acquire(wait=True)
    running = threading.Thread(target=run_trial, args=[{"trial": trial.id}], kwargs={"context": context})
    running.start()
    until(lambda: monitor.update() or (view._run and view._run.waits))
    console.print(view.screen())
    events.append(context.log, study.STOPPED, {"sweep": "now"})
    TuneThread(context)._signal(signal.SIGTERM)
    running.join(120)
    monitor.update()
    holder.release()
    (ended,) = [event["value"] for event in events.read(context.log) if event["key"] == study.ENDED]
    assert (ended["status"], ended["error"]) == ("interrupted", execute.STOPPED)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "waiting for another" in shown and f"interrupted: {execute.STOPPED}" in shown
    assert view.failed == 0 and "failed" not in shown
    assert [sentence.endswith(f"interrupted: {execute.STOPPED}") for sentence in monitor.unmeasured] == [True]


def test_the_time_that_a_trial_waited_is_not_its_run_s(tmp_path: Path) -> None:
    from mlbench.studies import tune

    log = tmp_path / study.LOG
    for pid, more in ((5, {}), (5, {"waited_s": 40.0}), (6, {"waited_s": 7.0})):
        events.append(log, study.WAITING, {"pid": pid, **more})
    assert tune._waited_s(log, 5) == 40.0


@pytest.mark.slow
def test_an_interrupted_sweep_s_parent_in_mlflow_is_killed_where_there_is_one(
    tmp_path: Path, empty_store: Path
) -> None:
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    plan = study.new("s", question="?")
    study.save(plan, study.folder(tmp_path, "s"))
    client = open_client(uri, artifacts=tmp_path / "artifacts")
    assert client is not None
    parent_runs.kill(plan, output_root=tmp_path, uri=uri)
    assert list(client.search("")) == []
    run = parent_runs.parent(client, tmp_path, "s")
    parent_runs.kill(plan, output_root=tmp_path, uri=uri)
    assert client.mlflow.get_run(run).info.status == "KILLED"


@pytest.mark.slow
def test_no_secret_of_a_sweep_reaches_mlflow(tmp_path: Path) -> None:
    """The plan keeps it, or the study could not go on."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    point = study.StudyPoint(key="k" * 16, overrides=("task.args=--api-key=hunter2",), seeds=(1,))
    plan = study.new("s", question="?").model_copy(update={"points": (point,)})
    study.save(plan, study.folder(tmp_path, "s"))
    summary = parent_runs.Summary(metrics=[], note="", tags={})
    run = parent_runs.write(plan, [], summary, output_root=tmp_path, uri=uri, status="FINISHED")
    client = open_client(uri, artifacts=None)
    assert client is not None
    path = client.mlflow.download_artifacts(run, study.PLAN, str(tmp_path))
    assert "api-key" in Path(path).read_text() and "hunter2" not in Path(path).read_text()
    assert "hunter2" in (study.folder(tmp_path, "s") / study.PLAN).read_text()

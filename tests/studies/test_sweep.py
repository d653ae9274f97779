"""`python -m mlbench.sweep` with real runs: Tune, MLflow, kill -9, extension, a dead server, a limit."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import chromium
import psutil
import pytest
from commands import PATIENCE_S, until
from conftest import ROOT
from tracking_server import Server

from mlbench.experiment import config, events, record, study
from mlbench.experiment.record import Record
from mlbench.tracking import sync

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TEXT = "document.body.innerText"  # of a page, what a person reads
TINY = ("task=logreg", "division=open", "task.epochs=1", "goal=none")  # some tenths of a second of training


@dataclass
class Sweep:
    """A sweep in the background, in a process group of its own."""

    process: subprocess.Popen[str]
    folder: Path
    output: Path

    def log(self, key: str) -> list[dict[str, Any]]:
        """Return the values of the study's events of one kind."""
        path = self.folder / study.LOG
        return [e["value"] for e in events.read(path) if e["key"] == key] if path.exists() else []

    def finish(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said

    def records(self) -> list[Record]:
        return [record.load(path) for path in sorted(self.output.glob("*/record.json"))]


@dataclass
class Place:
    """Where the sweeps of these tests leave their results."""

    environment: dict[str, str]
    output: Path
    data_root: Path

    def sweep(self, *words: str, name: str = "tiny") -> Sweep:
        given = {word.partition("=")[0] for word in words}
        tiny = [word for word in TINY if word.partition("=")[0] not in given]
        command = [sys.executable, "-m", "mlbench.sweep", *tiny, *words, f"study={name}"]
        command += [f"output_root={self.output}", f"data_root={self.data_root}"]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return Sweep(process, study.folder(self.output, name), self.output)


@pytest.fixture(scope="module")
def place(
    kept_ray: dict[str, str], tmp_path_factory: pytest.TempPathFactory, data_root: Path
) -> Iterator[Place]:
    yield Place(kept_ray, tmp_path_factory.mktemp("sweeps"), data_root)


@pytest.fixture(scope="module")
def first(place: Place) -> Sweep:
    """One point, once; the study that the following tests extend."""
    sweep = place.sweep("workers=1", "repeats=1")
    code, said = sweep.finish()
    assert code == 0, said
    return sweep


@pytest.fixture(scope="module")
def extended(first: Sweep, place: Place) -> tuple[Sweep, Sweep]:
    """The study extended; one of its runs killed, then the sweep killed, then started again."""
    words = ("workers=1,2", "repeats=2")
    killed = place.sweep(*words)
    begun(killed, trial=2).kill()  # a failed trial must not stop the rest
    run = begun(killed, trial=4)
    assert len(killed.log(study.ENDED)) == 3
    os.kill(killed.process.pid, signal.SIGKILL)
    until(lambda: not run.is_running() or run.status() == psutil.STATUS_ZOMBIE)
    killed.finish()
    again = place.sweep(*words)
    code, said = again.finish()
    assert code == 0, said
    return killed, again


def begun(sweep: Sweep, *, trial: int) -> psutil.Process:
    """Wait until the study's n-th trial has begun; return its process."""
    until(lambda: len(sweep.log(study.STARTED)) == trial or sweep.process.poll() is not None)
    assert sweep.process.poll() is None, sweep.finish()
    started = sweep.log(study.STARTED)[-1]
    logs = f"*-{started['seed']:x}/{events.NAME}"
    until(lambda: any(log.stat().st_size for log in sweep.output.glob(logs)))  # the run's begin is in it
    return psutil.Process(started["pid"])


def children(output: Path, name: str) -> tuple[Any, list[Any], Any]:
    """Return the study's parent run in MLflow, its children, and the client."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{output}/mlflow.db")
    experiment = client.get_experiment_by_name("mlbench")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], f"tags.study = '{name}'")
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    for run in runs:
        assert run is parent or run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    return parent, [run for run in runs if run is not parent], client


def test_a_trial_is_a_run_like_any_other(first: Sweep) -> None:
    (run,) = first.records()
    plan = study.load(first.folder)
    assert plan is not None and plan.points[0].seeds == (run.seed,)
    words = " ".join([*TINY, "workers=1", f"seed={run.seed}"])
    assert run.command.startswith(f"python -m mlbench.run {words} output_root=")
    assert run.status == "completed" and run.startup_time is not None


def test_a_killed_sweep_goes_on_and_repeats_nothing_that_was_finished(
    first: Sweep, extended: tuple[Sweep, Sweep]
) -> None:
    _, again = extended
    plan = study.load(again.folder)
    assert plan is not None and len(plan.points) == 2 and len(plan.invocations) == 2
    finished = [run for run in again.records() if run.status == "completed"]
    wanted = {(point.key, seed) for point in plan.points for seed in point.seeds}
    assert Counter((run.key, run.seed) for run in finished) == dict.fromkeys(wanted, 1)
    assert len(wanted) == 4
    others = [run for run in again.records() if run.status != "completed"]
    assert [run.status for run in others] == ["interrupted", "interrupted"], others
    failed = [value for value in again.log(study.ENDED) if value["status"] == "failed"]
    assert len(failed) == 1 and "exit code -9" in failed[0]["error"]


def test_trials_run_one_after_the_other(extended: tuple[Sweep, Sweep]) -> None:
    _, again = extended
    spans = sorted((run.started_at, run.ended_at) for run in again.records() if run.status == "completed")
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_mlflow_has_one_parent_with_every_run_and_the_aggregates(extended: tuple[Sweep, Sweep]) -> None:
    _, again = extended
    parent, runs, client = children(again.output, "tiny")
    assert parent.info.status == "FINISHED"
    statuses = Counter(run.data.tags["status"] for run in runs)
    assert statuses["completed"] == 4 and len(runs) == len(again.records())
    history = client.get_metric_history(parent.info.run_id, "samples_per_s")
    assert [point.step for point in history] == [1, 2], (
        "one value for each number of workers, extended or not"
    )
    runs_of_one = [r for r in again.records() if r.workers == 1 and r.status == "completed"]
    quiet = [r for r in runs_of_one if not r.disturbances] or runs_of_one  # the others enter no value
    rates = [r.samples_per_s for r in quiet if r.samples_per_s]
    assert history[0].value == pytest.approx(sum(rates) / len(rates))
    names = {item.path for item in client.list_artifacts(parent.info.run_id)}
    figures = ("speedup", "time_to_accuracy", "phases", "communication", "cost", "convergence")
    assert {*(f"{name}.png" for name in figures), "report.html", "summary.csv", "study.yaml"} <= names


@pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no Chromium on this machine")
def test_the_mlflow_ui_shows_the_study_its_runs_and_its_charts(
    extended: tuple[Sweep, Sweep], tmp_path: Path
) -> None:
    parent, runs, _ = children(extended[1].output, "tiny")
    server = Server(tmp_path, store=f"sqlite:///{extended[1].output}/mlflow.db")
    server.start()
    try:
        with chromium.browse() as page:
            table = f"{server.uri}/#/experiments/{parent.info.experiment_id}/runs"
            page.open(table)
            page.until(lambda: "study tiny" in page.ask(TEXT))
            assert failures(page) == []
            page.open("about:blank")  # to MLflow another place on its page is no other page
            page.open(f"{table}/{parent.info.run_id}")
            page.until(lambda: all(run.info.run_name in page.ask(TEXT) for run in runs))
            page.open("about:blank")
            page.open(f"{table}/{parent.info.run_id}/model-metrics")
            page.until(lambda: "exposed_communication" in page.ask(TEXT))
            page.until(lambda: page.ask("document.querySelectorAll('.main-svg').length") > 0)
            assert failures(page) == []
    finally:
        server.kill()


def failures(page: chromium.Page) -> list[dict[str, Any]]:
    """Return the errors of scripts; that nobody is logged in is none."""
    return [event for event in page.errors() if event["method"] == "Runtime.exceptionThrown"]


def test_a_finished_study_is_answered_without_ray_and_what_does_not_fit_is_refused(
    extended: tuple[Sweep, Sweep], place: Place
) -> None:
    _, again = extended
    before = len(again.records())
    code, said = place.sweep("workers=1,2", "repeats=2").finish()
    assert code == 0 and "4 of them finished" in said and "starting Ray" not in said
    code, said = place.sweep("workers=1", "backend=gloo,nccl", "repeats=2").finish()
    assert code == 1 and "add nodes with a GPU" in said and "Traceback" not in said, said
    assert len(again.records()) == before


def test_a_dead_server_stops_nothing_and_money_does(place: Place) -> None:
    dead = "tracking_uri=http://127.0.0.1:9"
    # It states 3 CPUs a worker; this machine may have fewer, and what is oversubscribed has no aggregates.
    hardware = ("hardware=gcp_n1_standard_4", "hardware.threads_per_worker=1")
    words = ("workers=1", "repeats=2", *hardware, "max_usd=0.000001", dead)
    sweep = place.sweep(*words, name="poor")
    code, said = sweep.finish()
    assert code == 1, said
    assert "max_usd=1e-06 would be exceeded" in said and "MLflow could not be reached" in said
    assert len(sweep.log(study.ENDED)) == 1
    uri = config.default_store(place.output)
    assert {one.outcome for one in sync.sync_runs(place.output, uri)} == {"present", "uploaded"}
    _, runs, _ = children(place.output, "poor")
    assert len(runs) == 1

    assert set(sync.sync_studies(place.output, uri)) >= {"poor"}
    parent, _, _ = children(place.output, "poor")
    assert parent.data.metrics["runs"] == 1


def test_an_interrupted_sweep_ends_its_run_and_goes_on_with_the_same_seed(place: Place) -> None:
    sweep = place.sweep("workers=1", "repeats=1", "task.epochs=100000", name="long")
    run = begun(sweep, trial=1)
    folder = next(place.output.glob(f"*-{sweep.log(study.STARTED)[0]['seed']:x}"))
    until(lambda: any(event["key"] == "validation" for event in events.read(folder / events.NAME)))
    sweep.process.send_signal(signal.SIGINT)
    code, said = sweep.finish()
    assert code == 130 and "run the same command again" in said and "Traceback" not in said, said
    assert not run.is_running(), (folder / events.NAME).read_text()[-500:]
    assert record.load(folder / "record.json").status == "interrupted"

"""`python -m mlbench.sweep` with real runs: Tune, MLflow, kill -9.

The study is the tutorial's, of which two thirds have been measured: the sample's runs stand for those.
Ctrl-C is typed in tests/use/test_on_ray.py.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import doc_pages
import psutil
import pytest
import sample
import screenshots
import terminals
from commands import PATIENCE_S, until
from conftest import ROOT
from zips import with_store

from mlbench.clusters import node
from mlbench.config import compose, identity
from mlbench.datasets.arrow import manifest_hash
from mlbench.record import events, provenance, reader, study
from mlbench.record.record import Record
from mlbench.tasks import registry
from mlbench.tracking import uploader

pytestmark = pytest.mark.slow

LINES = doc_pages.commands(ROOT / "docs" / "tutorial.md")
(TUTORIAL,) = (line for line in LINES if line.startswith("mlbench sweep "))
SWEEP = shlex.split(TUTORIAL)[2:]
POINT = [word for word in SWEEP if not word.startswith(("workers=", "repeats=", "study="))]
STUDY = SWEEP[-1]
NAME = STUDY.removeprefix("study=")
MEASURED = {1: 2, 2: 2}  # runs of the study that are there, by workers; the other two are measured here
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
        return [reader.load(path) for path in sorted(self.output.glob("*/record.json"))]


@dataclass
class Place:
    """A reader's folder, in which the sweeps of these tests leave their results."""

    environment: dict[str, str]
    folder: Path

    @property
    def output(self) -> Path:
        return self.folder / "runs"

    def tiny(self, *overrides: str, name: str) -> Sweep:
        """Begin a sweep of runs that train as little as may be."""
        names = {word.partition("=")[0] for word in overrides}
        return self.sweep(*(w for w in TINY if w.partition("=")[0] not in names), *overrides, f"study={name}")

    def sweep(self, *overrides: str) -> Sweep:
        """Begin a sweep; its last word is the study."""
        process = subprocess.Popen(
            [sys.executable, "-m", "mlbench.sweep", *overrides],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        name = overrides[-1].removeprefix("study=")
        return Sweep(process, study.folder(self.output, name), self.output)


@pytest.fixture(scope="module")
def place(kept_ray: dict[str, str], tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Place:
    environment = {**kept_ray, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    workspace = Place(environment, tmp_path_factory.mktemp("reader"))
    with_store(workspace.output, empty_store)
    return workspace


def measured(workspace: Place) -> None:
    """Begin the tutorial's study with the sample's runs, as if measured here by this version."""
    plan = study.new(NAME, question="How does time to accuracy change with workers?")
    for workers, count in MEASURED.items():
        overrides = (*POINT, f"workers={workers}")
        experiment = compose.compose([*overrides, STUDY])
        data = registry.load("logreg").prepare(experiment.task, workspace.folder / "data")
        update: dict[str, Any] = {"experiment": experiment, "key": identity.key(experiment)}
        update |= {"software": provenance.software(), "data_hash": manifest_hash(data)}
        seeds = []
        for path in sorted(sample.SAMPLE.glob(f"*-logreg-w{workers}-*/record.json"))[:count]:
            run = reader.load(path)
            nodes = [node.describe().model_copy(update={"threads_per_worker": 1})]
            (workspace.output / run.run_id).mkdir()
            run.model_copy(update={**update, "nodes": nodes}).save(workspace.output / run.run_id)
            seeds.append(run.seed)
        line = study.Invocation(at="2026-11-22T00:00:00+00:00", overrides=overrides, repeats=count)
        plan = study.extended(plan, {update["key"]: overrides}, invocation=line, seeds=tuple(seeds))
    study.save(plan, study.folder(workspace.output, NAME))


@pytest.fixture(scope="module")
def resumed(place: Place) -> tuple[Sweep, str]:
    """The whole study; one of its runs killed, then the sweep killed, then started again on a terminal."""
    measured(place)
    killed = place.sweep(*SWEEP)
    begun(killed, trial=1).kill()  # a failed trial must not stop the rest
    run = begun(killed, trial=2)
    assert len(killed.log(study.ENDED)) == 1
    os.kill(killed.process.pid, signal.SIGKILL)
    until(lambda: not run.is_running() or run.status() == psutil.STATUS_ZOMBIE)
    killed.finish()
    until(lambda: not any(map(locked, place.output.glob(f"*/{events.NAME}"))))
    shown = terminals.show(
        [sys.executable, "-m", "mlbench.sweep", *SWEEP],
        terminals.LARGE,
        env=place.environment,
        cwd=place.folder,
        frame=lambda screen: "4/6 done" in screen,
    )
    assert shown.code == 0 and "4/6 done" in shown.frame.plain, shown.written
    screenshots.terminal(shown.frame, "sweep-120x40", terminals.LARGE[0])
    return killed, shown.written


def locked(log: Path) -> bool:
    """Return whether a process that a killed run has started still holds the run's folder."""
    try:
        os.close(uploader.lock(log.parent))
    except BlockingIOError:
        return True
    return False


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


def here(sweep: Sweep) -> list[Record]:
    """Return the runs that were begun here: the sample's have no log."""
    return [run for run in sweep.records() if (sweep.output / run.run_id / events.NAME).exists()]


def test_a_killed_sweep_goes_on_and_repeats_nothing_that_was_finished(resumed: tuple[Sweep, str]) -> None:
    """Only Tune's trials on Ray show what outlives a sweep's kill -9: its actor, the run, and the study."""
    sweep, _ = resumed
    plan = study.load(sweep.folder)
    assert plan is not None and len(plan.points) == 2 and len(plan.invocations) == len(MEASURED) + 1
    finished = [run for run in sweep.records() if run.status == "goal_reached"]
    wanted = {(point.key, seed) for point in plan.points for seed in point.seeds}
    assert Counter((run.key, run.seed) for run in finished) == dict.fromkeys(wanted, 1)
    assert len(wanted) == 6
    others = [run for run in sweep.records() if run.status != "goal_reached"]
    assert [run.status for run in others] == ["interrupted", "interrupted"], others
    failed = [value for value in sweep.log(study.ENDED) if value["status"] == "failed"]
    # Of the trial that ran when its sweep was killed, Tune's actor may live long enough to log the end.
    started = [value["trial"] for value in sweep.log(study.STARTED)]
    assert len(failed) <= 2 and failed[0]["trial"] == started[0]
    assert {value["trial"] for value in failed[1:]} <= {started[1]}
    assert all("exit code -9" in value["error"] for value in failed)
    measured_here = [run for run in here(sweep) if run.status == "goal_reached"]
    assert len(measured_here) == 2
    for run in measured_here:
        arguments = " ".join([*POINT, f"workers={run.workers}", f"seed={run.seed}", STUDY])
        assert run.command == f"python -m mlbench.run {arguments}" and run.startup_time is not None

    spans = sorted((run.started_at, run.ended_at) for run in measured_here)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_mlflow_has_one_parent_with_every_run_and_the_aggregates(resumed: tuple[Sweep, str]) -> None:
    sweep, _ = resumed
    parent, runs, client = children(sweep.output, NAME)
    assert parent.info.status == "FINISHED"
    statuses = Counter(run.data.tags["status"] for run in runs)
    assert statuses["goal_reached"] == 2 and len(runs) == len(here(sweep)) == 4
    history = client.get_metric_history(parent.info.run_id, "samples_per_s")
    assert [point.step for point in history] == [1, 2], (
        "one value for each number of workers, extended or not"
    )
    runs_of_one = [r for r in sweep.records() if r.workers == 1 and r.status == "goal_reached"]
    quiet = [r for r in runs_of_one if not r.disturbances] or runs_of_one  # the others enter no value
    rates = [r.samples_per_s for r in quiet if r.samples_per_s]
    assert history[0].value == pytest.approx(median(rates))
    names = {item.path for item in client.list_artifacts(parent.info.run_id)}
    figures = ("speedup", "time_to_accuracy", "phases", "communication", "cost", "convergence")
    assert {*(f"{name}.png" for name in figures), "report.html", "summary.csv", "study.yaml"} <= names


def test_a_point_that_does_not_fit_is_refused_and_a_sweep_whose_trials_do_not_start_fails(
    place: Place, tmp_path: Path
) -> None:
    """Tune counts such a trial as an error of its own, and goes on."""
    there = replace(place, folder=tmp_path)
    logs = study.folder(there.output, "stuck") / "logs"
    logs.parent.mkdir(parents=True)
    logs.touch()
    sweep = there.tiny("workers=1", "backend=gloo,nccl", "repeats=1", name="stuck")
    code, said = sweep.finish()
    assert code == 1 and "did not start" in said and "File exists" in said, said
    assert "needs 1 GPUs" in said and "Traceback" not in said and not sweep.records(), said

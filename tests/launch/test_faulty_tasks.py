"""Tasks that break at chosen moments, and a command that is told to end: real processes."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import CACHE, Run, until
from conftest import ROOT
from zips import with_store

from mlbench.clusters import processes
from mlbench.clusters.node import usable_cpus

pytestmark = pytest.mark.slow

YAML = """
name: faulty
recipe: plain
dataset: none
metric: score
metric_unit: ""
direction: max
goals: {official: 3, light: 1}
time_budget_s: 60
batch_size: 1
epochs: 3
fault: none
recipes: {plain: {}}
scales: {official: {}, mini: {}}
"""
PREPARE = """
from mlbench.config.experiment import TrainingConfig

class Config(TrainingConfig):
    fault: str

def prepare(config, root, *, progress=None):
    return root
"""
# Scores 1, 2, 3 in three epochs, so the third reaches the goal. Rank 1 is the one that breaks.
BUILD = """
import os, signal, time
from pathlib import Path
import torch
from mlbench.training.setup import TrainingSetup

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_once_the_log_has(text, root):
    while not any(text in log.read_text() for log in root.glob("*/events.jsonl")):
        time.sleep(0.001)
    die()

def build(config, worker):
    model = torch.nn.Linear(1, 1)
    scores = iter(range(1, 9))
    fault = config.fault if worker.rank == 1 else "none"

    def loss(output, batch):
        if fault == "key_error":
            return {}["colour"]
        if fault == "sleep":
            time.sleep(1)
        return output.sum()

    def table(_):
        root = worker.data_root.parent
        if fault == "killed_after_the_goal":
            die_once_the_log_has('"goal_reached": true', root)
        return []

    return TrainingSetup(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), epochs=config.epochs,
        steps=lambda _, epoch: [[torch.ones(1, 1)]] * 2, forward=lambda net, x: net(x), loss=loss,
        validate=lambda *_: {"score": float(next(scores))}, samples=len, table=table,
    )
"""
POINTS = "[mlbench.tasks]\nfaulty = faulty\n[mlbench.conf]\nfaulty = faulty.conf\n"


@pytest.fixture(scope="module")
def environment(
    kept_ray: dict[str, str], site: Path, tmp_path_factory: pytest.TempPathFactory, empty_store: Path
) -> dict[str, str]:
    """Return the environment in which the package is found as an installed one is."""
    files = {
        "faulty/__init__.py": PREPARE,
        "faulty/torch.py": BUILD,
        "faulty/conf/__init__.py": "",
        "faulty/conf/task/faulty.yaml": YAML,
        "faulty-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n",
        "faulty-1.0.dist-info/entry_points.txt": POINTS,
    }
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {
        **kept_ray,
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
        "FAULTY_ROOT": str(tmp_path_factory.mktemp("runs")),
        "FAULTY_STORE": str(empty_store),
    }


def start(environment: dict[str, str], *overrides: str, workers: int = 2) -> Run:
    root = Path(environment["FAULTY_ROOT"]) / str(len(list(Path(environment["FAULTY_ROOT"]).iterdir())))
    with_store(root, Path(environment["FAULTY_STORE"]))
    data = root / "data"
    data.mkdir()
    environment = {**environment, "FAULTY_ROOT": str(root)}
    return Run(environment, root, data, "task=faulty", f"workers={workers}", *overrides)


def finished(environment: dict[str, str], fault: str, *, workers: int = 2) -> tuple[int, str, Any]:
    run = start(environment, "division=open", f"task.fault={fault}", workers=workers)
    code, output = run.finish()
    return code, output, run.record()


def test_an_exception_in_a_task_is_told_with_its_rank_line_and_log(environment: dict[str, str]) -> None:
    """Only where Ray's servers end with the run is neither their end nor a worker's told as the cause."""
    code, output, record = finished({**environment, CACHE: environment[CACHE] + "-own"}, "key_error")
    shown = " ".join(output.split())
    assert code == 1 and record.status == "failed" and record.error is not None, output
    sentence, _, log = record.error.partition(". Log of rank 1: ")
    assert sentence.startswith("rank 1: KeyError: 'colour' (") and "faulty/torch.py, line " in sentence, (
        sentence
    )
    assert "faulty" in Path(log.split(" on ")[0]).read_text()
    assert "rank 1: KeyError: 'colour'" in shown and "has died" not in shown and "GCS" not in output
    assert "Traceback" not in output


def test_a_worker_that_is_killed_after_the_goal_takes_nothing_from_what_was_measured(
    environment: dict[str, str],
) -> None:
    """Only on Ray does a worker die between the goal, which the log holds, and what it had still to tell.

    More workers than CPUs are marked.
    """
    workers = usable_cpus() + 1
    code, output, record = finished(environment, "killed_after_the_goal", workers=workers)
    assert record.oversubscribed and record.workers == workers
    assert "oversubscribed" in output
    assert [each.metrics["score"] for each in record.validations] == [1, 2, 3]
    assert code == 0, output
    assert (record.status, record.nodes) == ("goal_reached", [])
    assert record.time_to_accuracy == record.validations[-1].elapsed
    # A busy machine has caveats of its own.
    (caveat,) = [caveat for caveat in record.caveats if "reached its goal" in caveat]
    assert "rank 1 died" in caveat and "rank 1 died" in " ".join(output.split())  # the card wraps its lines


def test_sigterm_while_ray_starts_leaves_a_record_and_no_process(environment: dict[str, str]) -> None:
    """Only Ray's start has servers that run, and no connection; test_sweep.py sends it to one that trains."""
    run = start({**environment, CACHE: environment[CACHE] + "-own"})
    until(lambda: "gcs_server" in below(run).values() or run.process.poll() is not None)
    ours = below(run)
    run.process.send_signal(signal.SIGTERM)
    code, output = run.finish()
    assert code == 130, output
    assert run.record().status == "interrupted" and "Traceback" not in output
    assert "gcs_server" in ours.values()
    until(lambda: not any(map(processes.lives, ours)))


def below(run: Run) -> dict[psutil.Process, str]:
    """Return the processes below a run with their names."""
    family = {}
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            family[process] = process.name()
    return family

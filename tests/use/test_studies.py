"""Sweeps, on a Ray that stays, and the flows that answer their studies."""

import json
import shutil
import signal
import subprocess
from importlib.util import find_spec

import pytest
from commands import until
from conftest import ROOT
from installed import Place
from test_under_torchrun import SHORT, SIZES

pytestmark = pytest.mark.use


@pytest.fixture(scope="module")
def studies(users_ray: Place) -> Place:
    """Return the user's folder with the flows, and a finished study of each kind that they read.

    The first of them is interrupted once its first run has ended, and goes on with the same command.
    """
    shutil.copytree(ROOT / "pipelines", users_ray.folder / "pipelines")
    line = f"mlbench sweep task=logreg workers=1,2 repeats=1 {SHORT} study=typed"
    trials = users_ray.folder / "runs" / "studies" / "typed" / "trials.jsonl"
    first = subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        cwd=users_ray.folder,
        env=users_ray.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until(lambda: (trials.exists() and '"status"' in trials.read_text()) or first.poll() is not None)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate()
    assert first.returncode in (130, 0) and "Traceback" not in said, said
    answer = users_ray.type(line)
    assert "1 of them finished" in answer.text or first.returncode == 0 or "2 of them finished" in answer.text
    users_ray.type(f"mlbench sweep task=allreduce workers=2 repeats=1 {SIZES} study=tables")
    return users_ray


def test_a_sweep_that_is_interrupted_goes_on_with_the_same_command(studies: Place) -> None:
    runs = json.loads(studies.type("mlbench results list study:typed status=completed --json").stdout)
    assert sorted(run["workers"] for run in runs) == [1, 2]


def test_a_sweep_from_python_returns_its_study(studies: Place) -> None:
    (studies.folder / "study.py").write_text(
        """import mlbench
words = ["launcher=torchrun", "division=open", "goal=none", "task.epochs=1"]
study = mlbench.sweep(*words, task="logreg", workers=[1, 2], repeats=1, study="python")
assert study.report.exists() and not study.unmeasured, study
print(*sorted(row["workers"] for row in study.rows()), len(study.records), bool(study.answer()))
"""
    )
    assert studies.type("python study.py").stdout.splitlines()[-1] == "1 2 2 True"


@pytest.mark.skipif(find_spec("metaflow") is None, reason="needs metaflow")
@pytest.mark.parametrize("flow", ["backends", "network", "scaling", "suite", "sync", "tuning"])
def test_a_flow_answers_a_study(studies: Place, flow: str) -> None:
    name = "tables" if flow == "backends" else "typed"
    answer = studies.type(f"python pipelines/{flow}.py run --study {name}")
    page = studies.folder / "runs" / "studies" / name / "report" / "report.html"
    assert page.exists() and str(page.relative_to(studies.folder)) in answer.text

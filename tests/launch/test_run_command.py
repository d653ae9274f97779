"""The command of the README end to end: Ray, real workers, the log, MLflow, the card."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import screenshots
import terminals
from commands import PATIENCE_S, Run, Runs
from conftest import ROOT
from zips import with_store

from mlbench.record.reader import load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def first(
    kept_ray: dict[str, str], tmp_path_factory: pytest.TempPathFactory, data_root: Path, empty_store: Path
) -> tuple[Runs, str]:
    """The default run on a terminal, with a seed, in a module-wide folder."""
    output = with_store(tmp_path_factory.mktemp("runs"), empty_store)
    command = [sys.executable, "-m", "mlbench.run", f"output_root={output}", f"data_root={data_root}"]
    shown = terminals.show(
        [*command, "seed=1"],
        terminals.SMALL,
        env=kept_ray,
        cwd=ROOT,
        frame=lambda screen: "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in screen and "training" in screen,
    )
    assert shown.code == 0, shown.written
    assert "top1_accuracy" in shown.frame.plain and "epoch" in shown.frame.plain, shown.written
    screenshots.terminal(shown.frame, "run-80x24", terminals.SMALL[0])
    return Runs(output), shown.written


@pytest.mark.main_job
def test_the_default_run_reaches_its_goal_and_says_everything(first: tuple[Runs, str]) -> None:
    """Only the whole command shows that the main job of the README ends at its goal with its card."""
    run, output = first
    record = run.record()
    assert record.status == "goal_reached" and record.best is not None and record.best >= 97
    assert record.time_to_accuracy is not None and record.startup_time is not None
    assert sum(record.startup.parts().values()) == pytest.approx(record.startup_time)
    assert record.wall > record.startup_time + record.time_to_accuracy
    assert record.contradictions == []
    total = sum(spread.mean for spread in record.phases.values())
    assert total < record.time_to_accuracy
    assert 0 < record.phases["wait"].mean + record.phases["transfer"].mean < total
    assert len(record.nodes) == 1 and record.nodes[0].calibration == {}  # left out here
    assert record.data_hash is not None and record.flops_per_sample
    assert str(record.software.packages["torch"]).startswith("2.")
    assert record.cost is None and not record.eligible
    text = " ".join(output.split())
    assert all(part in text for part in ("GOAL REACHED", "s to the goal", "transfer", "seed=1"))
    assert "Traceback" not in output


@pytest.mark.main_job
def test_the_run_is_in_mlflow_with_its_artifacts(first: tuple[Runs, str]) -> None:
    from mlflow import MlflowClient
    from mlflow.artifacts import list_artifacts

    run, _ = first
    client = MlflowClient(f"sqlite:///{run.output}/mlflow.db")
    experiment = client.get_experiment_by_name("mlbench")
    assert experiment is not None
    (mlflow_run,) = client.search_runs([experiment.experiment_id])
    assert mlflow_run.info.status == "FINISHED" and mlflow_run.data.tags["status"] == "goal_reached"
    assert mlflow_run.data.metrics["time_to_accuracy_s"] == pytest.approx(run.record().time_to_accuracy)
    history = client.get_metric_history(mlflow_run.info.run_id, "validation/top1_accuracy")
    walls = [validation.wall for validation in run.record().validations]
    assert [point.timestamp / 1000 for point in history] == pytest.approx(walls, abs=0.002)
    names = {Path(item.path).name for item in list_artifacts(artifact_uri=mlflow_run.info.artifact_uri)}
    assert {"config.yaml", "record.json", "events.jsonl", "result.txt"} <= names


@pytest.mark.gpu
def test_every_gpu_of_this_machine_trains_over_nccl(tmp_path: Path, data_root: Path) -> None:
    """Only Ray gives each worker a real GPU, over which NCCL then reaches the others."""
    import torch

    workers = torch.cuda.device_count()
    run = Run(dict(os.environ), tmp_path, data_root, "backend=nccl", f"workers={workers}")
    code, output = run.finish()
    assert code == 0, output
    record = run.record()
    assert record.status == "goal_reached" and record.workers == workers
    assert record.nodes[0].gpus and not record.oversubscribed
    assert all(record.phases[phase].mean > 0 for phase in ("forward", "backward", "optimizer"))


def test_a_diverged_run_is_recorded_with_a_full_output_and_no_asserts(
    tmp_path: Path, data_root: Path, empty_store: Path
) -> None:
    output = with_store(tmp_path / "runs", empty_store)
    words = [f"output_root={output}", f"data_root={data_root}", "task=logreg", "workers=1"]
    words += ["launcher=torchrun", "division=open", "task.lr=1e38", "task.l2=1.0"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mlbench.run", *words], cwd=ROOT, stdout=full, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONOPTIMIZE": "1"}, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
    (path,) = output.glob("*/record.json")
    assert load(path).status == "diverged"
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "cannot show the" in done.stderr and path.parent.name in done.stderr

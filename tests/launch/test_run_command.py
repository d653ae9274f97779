"""The command of the README end to end: Ray, real workers, the log, MLflow, the card."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import screenshots
import terminals
from commands import PATIENCE_S, Run, Runs
from conftest import ROOT
from zips import with_store

from mlbench.record.reader import load

pytestmark = pytest.mark.slow


def command(
    *arguments: str, environment: dict[str, str] | None = None, stdout: Any = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run `python -m mlbench.run` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "mlbench.run", *arguments],
        cwd=ROOT,
        env=environment or os.environ,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
    )


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
    for part in (
        "GOAL REACHED",
        "s to the goal",
        "transfer",
        "seed=1",
    ):
        assert part in text
    assert "Traceback" not in output


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


def test_the_same_seed_is_not_measured_again_and_a_full_output_is_a_failure(
    first: tuple[Runs, str], kept_ray: dict[str, str], data_root: Path
) -> None:
    run, _ = first
    before = len(list(run.output.glob("*/record.json")))
    again = Run(kept_ray, run.output, data_root, "seed=1")
    code, output = again.finish()
    answer = f"already measured at {run.record().started_at} with seed=1"
    assert code == 0 and answer in " ".join(output.split())
    assert len(list(run.output.glob("*/record.json"))) == before
    overrides = (f"output_root={run.output}", f"data_root={data_root}", "seed=1")
    with open("/dev/full", "w") as full:
        done = command(*overrides, environment=kept_ray, stdout=full)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr


@pytest.fixture(scope="module")
def inside(kept_ray: dict[str, str]) -> dict[str, str]:
    """The environment of a process on a node of a Ray cluster."""
    address = subprocess.run(
        [sys.executable, "-m", "mlbench.cluster", "status"],
        cwd=ROOT, env=kept_ray, capture_output=True, text=True, check=True,
    ).stdout.split()[-1]  # fmt: skip
    return {**kept_ray, "RAY_ADDRESS": address}


def test_a_diverged_run_inside_a_ray_cluster_is_recorded_with_a_full_output_and_no_asserts(
    inside: dict[str, str], tmp_path: Path, data_root: Path, empty_store: Path
) -> None:
    """Only a Ray that is there already shows that a run joins it, and that it stays when the run ends."""
    overrides = [
        "task=logreg",
        "workers=1",
        "cluster=attached",
        "division=open",
        "task.lr=1e38",
        "task.l2=1.0",
    ]
    output = with_store(tmp_path / "runs", empty_store)
    environment = {**inside, "PYTHONOPTIMIZE": "1"}
    with open("/dev/full", "w") as full:
        done = command(
            *overrides,
            f"output_root={output}",
            f"data_root={data_root}",
            environment=environment,
            stdout=full,
        )
    (path,) = output.glob("*/record.json")
    record = load(path)
    assert record.status == "diverged" and record.experiment.cluster.name == "attached"
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "cannot show the result card" in done.stderr and path.parent.name in done.stderr
    status = [sys.executable, "-m", "mlbench.cluster", "status"]
    said = subprocess.run(status, cwd=ROOT, env=inside, capture_output=True, text=True, check=True).stdout
    assert inside["RAY_ADDRESS"] in said


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


def test_a_cluster_that_is_too_small_refuses_and_says_what_fits(
    inside: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    """Only a Ray that is there tells how many CPUs its nodes have."""
    done = command(
        "cluster=attached", "workers=64", "task=logreg", f"output_root={tmp_path}", f"data_root={data_root}",
        environment=inside,
    )  # fmt: skip
    assert done.returncode == 2
    assert "workers=64 needs 64 CPUs" in done.stderr and "say workers=" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_at_which_no_ray_answers_is_told_and_not_waited_for(
    kept_ray: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    """Ray waited for minutes, also for its own last cluster here, whose address it keeps after its end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # taken, and nobody listens
        environment = {**kept_ray, "RAY_ADDRESS": f"127.0.0.1:{free.getsockname()[1]}"}
        overrides = ("cluster=attached", f"output_root={tmp_path}", f"data_root={data_root}")
        done = command(*overrides, environment=environment)
    assert done.returncode == 2
    assert "cluster=attached found no Ray at" in done.stderr and "cluster.address=HOST:PORT" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("wrokers=3",), "did you mean workers?"),
        (("scale=official",), "python -m mlbench.data prepare task=resnet20 scale=official"),
        (("output_root=/dev/null/x",), "/dev/null/x"),
    ],
)
def test_mistakes_end_with_one_sentence_before_ray_starts(
    overrides: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    done = command(*overrides, f"data_root={tmp_path}")
    assert done.returncode == 2
    assert sentence in done.stderr and "Traceback" not in done.stderr and "Ray" not in done.stdout


def test_help_teaches() -> None:
    done = command("--help")
    assert done.returncode == 0
    for word in ("resnet20", "logreg", "gloo", "scale", "division", "closed", "python -m mlbench.run task="):
        assert word in done.stdout

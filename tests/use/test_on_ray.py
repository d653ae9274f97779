"""Every task by its command on a Ray that stays, where MLflow is not installed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from installed import Place, shared
from test_under_torchrun import SHORT, SIZES, TASKS

from mlbench.analysis.stragglers import of_run

pytestmark = pytest.mark.use


@pytest.fixture(scope="module")
def on_ray(user: Place, installed_root: Path) -> Iterator[Place]:
    """Keep one Ray for this file's commands, as `mlbench cluster start` does; yield the user's folder."""
    shell = user.activated(shared(installed_root, ("image", "ray", "report", "text")))
    shell.type("mlbench cluster start")
    yield shell
    shell.type("mlbench cluster stop")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_trains_to_its_first_validation(on_ray: Place, task: str, workers: int) -> None:
    record = on_ray.run(f"python -m mlbench.run task={task} workers={workers} {TASKS[task]}")
    status = "completed" if SHORT in TASKS[task] else "goal_reached"
    assert (record.status, record.workers, record.experiment.launcher) == (status, workers, "ray")
    assert len(record.validations) == 1 and record.best is not None and record.steps


def test_collectives_are_timed_between_two_workers_and_refused_for_one(on_ray: Place) -> None:
    record = on_ray.run(f"mlbench run task=allreduce workers=2 {SIZES}")
    assert record.status == "completed" and record.table
    assert {row["wrong_elements"] for row in record.table if row["kind"] == "times"} == {0}
    refused = on_ray.type(f"mlbench run task=allreduce workers=1 {SIZES}", codes=[2])
    assert "at least 2 workers" in refused.text


def test_a_script_trains_on_ray_s_workers_and_its_late_rank_is_named(on_ray: Place) -> None:
    (on_ray.folder / "ddp.py").write_bytes((ROOT / "tests/script/scripts/ddp.py").read_bytes())
    words = "task=script task.path=ddp.py task.args='1 1 0.2' task.metric=val_acc"
    record = on_ray.run(f"mlbench run {words} workers=2")
    assert (record.status, record.workers, record.steps, record.samples) == ("completed", 2, 32, 2048)
    assert len(record.validations) == 1 and record.best is not None
    late = of_run(record)
    assert late is not None and late.rank == 1 and late.low_s > 0.15
    logs = [path.read_text() for path in sorted((on_ray.folder / "runs" / record.run_id).glob("rank_*.log"))]
    assert len(logs) == 2 and "val_acc" in logs[0] and "val_acc" not in logs[1]

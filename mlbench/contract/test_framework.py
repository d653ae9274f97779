"""The contract of a task's part for another framework than torch: of --task NAME, or of every task.

Its reference is the task's torch part: the same data in the same order, initial weights, rates and metrics.
"""

import math
from pathlib import Path
from typing import Any

import pytest

from mlbench.config import plugins
from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.contract.by_hand import beginning
from mlbench.contract.options import names
from mlbench.contract.ranks import mini_worker, run_ranks
from mlbench.contract.test_task import spoil
from mlbench.tasks import registry
from mlbench.training import loop
from mlbench.training.worker import Worker

STEPS = 20
SAME = 1e-4  # between two frameworks' losses in float32, whose sums have other orders


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    tasks = names(metafunc.config, "task")
    pairs = [
        (framework, name)
        for framework in plugins.frameworks()
        for name in plugins.trained_by(framework)
        if name in tasks
    ]
    if "framework" in metafunc.fixturenames:
        metafunc.parametrize(("framework", "name"), pairs)


@pytest.fixture(autouse=True)
def _installed(framework: str) -> None:
    try:
        plugins.framework(framework).require()
    except UserError as error:
        pytest.skip(str(error))


def first_steps(
    worker: Worker, name: str, framework: str, prepared: Path, spoilt: str | None = None
) -> dict[str, Any]:
    """Return the losses of the first steps, what was validated then, and the time in steps.

    `spoilt`: a file of the data set that is spoilt before the loop lets the task load it.
    """
    experiment = compose([f"task={name}", "goal=none", "division=open", f"framework={framework}"])
    setup = registry.build(experiment.task, mini_worker(worker, prepared), framework)
    run = loop.Run(setup, worker, report_s=math.inf)
    if spoilt is not None:
        spoil(prepared / spoilt)
    worker.timer.start()
    try:
        run.data = setup.load()
        run.trainer.train()
        losses, seen = run.trainer.losses, []
        for micro_batches in beginning(setup.steps(run.data, 0), STEPS):
            worker.timer.end_phase("data_wait")
            run.train_step(micro_batches)
            seen.append(losses.total())
            losses.reset()
        with run.trainer.validating() as model:
            metrics = setup.validate(model, run.data)
    finally:
        setup.close()
    times, _ = worker.timer.pop()
    return {"losses": seen, "metrics": metrics, "times": times}


def both(worker: Worker, name: str, framework: str, prepared: Path) -> list[dict[str, Any]]:
    """Return a framework's first steps and torch's."""
    return [first_steps(worker, name, each, prepared) for each in (framework, plugins.TORCH)]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_steps_and_their_validation_are_torchs(
    framework: str, name: str, workers: int, data_root: Path
) -> None:
    ranks = run_ranks(both, workers, name, framework, data_root)
    for ours, theirs in ranks:
        assert ours["losses"] == pytest.approx(theirs["losses"], abs=SAME)
        assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=SAME)
        assert ours["metrics"] == ranks[0][0]["metrics"], "the ranks do not have one model"
        times = ours["times"]
        assert sum(times.phases.values()) == pytest.approx(times.seconds) and times.steps == STEPS


def spoilt(worker: Worker, name: str, framework: str, folders: list[Path], file: str) -> list[list[float]]:
    """Return the losses on data that are spoilt once the step is compiled, on spoilt and on whole data."""
    runs = [(folders[0], file), (folders[0], None), (folders[1], None)]
    return [first_steps(worker, name, framework, *each)["losses"] for each in runs]


def test_no_content_of_the_data_is_read_before_the_clock_runs(
    framework: str, name: str, data_root: Path, tmp_path: Path
) -> None:
    task = compose([f"task={name}"]).task
    folder = registry.load(name).prepare(task, data_root)
    (file,) = folder.glob("train*.arrow")
    (tmp_path / task.dataset).mkdir()
    for path in folder.iterdir():
        (tmp_path / task.dataset / path.name).write_bytes(path.read_bytes())
    where = [tmp_path, data_root]
    ((late, already, whole),) = run_ranks(spoilt, 1, name, framework, where, f"{task.dataset}/{file.name}")
    assert late == already != whole

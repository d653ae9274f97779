"""What happens when something dies in the middle of a run: real processes, really killed."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from commands import Run, training_processes, until

from mlbench.experiment import events
from mlbench.experiment.errors import UserError

pytestmark = [pytest.mark.ray, pytest.mark.slow]
LONG = ("goal=none", "division=open", "task.epochs=400", "task.width=4")


@pytest.fixture
def start(kept_ray: dict[str, str], tmp_path: Path, data_root: Path):
    runs: list[Run] = []

    def begin(*words: str) -> Run:
        runs.append(Run(kept_ray, tmp_path, data_root, *words))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.wait()
        if run.process.stdout:
            run.process.stdout.close()
    until(lambda: not training_processes(kept_ray))


def test_a_killed_worker_fails_the_run_in_one_sentence(start) -> None:
    run = start(*LONG)
    run.await_validation(2)
    run.workers()[-1].kill()
    code, output = run.finish()
    record = run.record()
    assert code == 1 and record.status == "failed"
    assert record.error is not None and "died" in record.error and "rank" in record.error
    assert record.error in " ".join(output.split())
    assert len(record.validations) >= 2 and record.time_to_accuracy is None
    assert "Traceback" not in output


@pytest.fixture
def broken_task(tmp_path: Path) -> dict[str, str]:
    """Install a task whose build asks for a key that is not there; return an environment with no Ray."""
    package, info = tmp_path / "site" / "broken_task", tmp_path / "site" / "broken_task-1.dist-info"
    (package / "conf" / "task").mkdir(parents=True)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-task\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[mlbench.tasks]\nbroken = broken_task\n[mlbench.conf]\nbroken_task = broken_task.conf\n"
    )
    (package / "__init__.py").write_text(
        "from mlbench.experiment.config import TrainingConfig as Config\n"
        "def prepare(config, root, *, progress=None): return root\n"
    )
    (package / "torch.py").write_text("def build(config, worker):\n    return {}['learning_rate']\n")
    (package / "conf" / "__init__.py").touch()
    (package / "conf" / "task" / "broken.yaml").write_text(
        "{name: broken, recipe: plain, dataset: none, metric: accuracy, metric_unit: '%', direction: max, "
        "goals: null, time_budget_s: 60, batch_size: 1, epochs: 1, recipes: {plain: {}}, "
        "scales: {mini: {}, official: {}}}"
    )
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(package.parent)}


def test_an_exception_in_a_worker_is_told_with_its_rank_line_and_log(
    broken_task: dict[str, str], tmp_path: Path, data_root: Path
) -> None:
    """On a Ray of the run's own, whose servers end with it: their end is no cause."""
    run = Run(broken_task, tmp_path / "runs", data_root, "task=broken")
    code, output = run.finish()
    record = run.record()
    assert code == 1 and record.status == "failed" and record.error is not None, output
    told, _, log = record.error.partition("; log of rank 0: ")
    assert "rank 0: KeyError: 'learning_rate' (" in told and "broken_task/torch.py, line 2)" in told
    assert "broken_task" in Path(log.split(" on ")[0]).read_text()
    assert "GCS" not in output and "Traceback" not in output


def test_a_killed_server_of_ray_ends_the_run_and_is_told(tmp_path: Path, data_root: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    run = Run(environment, tmp_path / "runs", data_root, *LONG)
    run.await_validation(1)
    children = psutil.Process(run.process.pid).children(recursive=True)
    next(child for child in children if child.name() == "gcs_server").kill()
    code, output = run.finish()
    record = run.record()
    assert code == 1 and record.status == "failed" and "(GCS) has died" in (record.error or ""), output


def test_a_killed_worker_is_restarted_from_the_last_checkpoint_and_the_clock_runs_on(start) -> None:
    run = start("goal=none", "division=open", "task.epochs=24", "task.width=4", "max_failures=1", "seed=3")
    run.await_validation(3)
    run.workers()[0].kill()
    code, output = run.finish()
    assert code == 0, output
    record = run.record()
    assert record.status == "completed" and len(record.restarts) == 1
    assert record.epochs == 24 and record.steps == 24 * 22
    elapsed = [validation.elapsed for validation in record.validations]
    assert elapsed == sorted(elapsed)
    # The workers' restart, seconds of it, lies between two validations and stays on the clock.
    gaps = [after - before for before, after in zip(elapsed, elapsed[1:], strict=False)]
    assert max(gaps) > 5 * sorted(gaps)[len(gaps) // 2]


def test_a_killed_driver_leaves_a_valid_log_and_the_same_command_repeats_cleanly(start) -> None:
    run = start(*LONG, "seed=5")
    run.await_validation(2)
    run.process.kill()
    run.process.communicate()
    first = run.folder
    log = events.read(first / events.NAME)
    assert [event["key"] for event in log][0] == "run_configuration"
    assert not (first / "record.json").exists()
    until(lambda: not run.workers())
    again = start("goal=none", "division=open", "task.epochs=2", "task.width=4", "seed=5")
    code, output = again.finish()
    assert code == 0, output
    assert again.folder != first and again.record().status == "completed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_processes_and_records_interrupted(start, number: signal.Signals) -> None:
    run = start(*LONG)
    run.await_validation(1)
    run.process.send_signal(number)
    code, output = run.finish()
    assert code == 130, output
    assert run.record().status == "interrupted" and len(run.record().validations) >= 1
    until(lambda: not run.workers())


def test_a_stuck_collective_ends_by_a_timeout_that_names_the_missing_rank(start) -> None:
    run = start(*LONG, "backend.timeout_s=5")
    run.await_validation(1)
    frozen = run.workers()[-1]
    frozen.suspend()
    try:
        code, output = run.finish()
    finally:
        with suppress(psutil.NoSuchProcess):
            frozen.kill()
    record = run.record()
    assert code == 1 and record.status == "failed"
    assert record.error is not None and "stuck" in record.error and "rank" in record.error


def test_a_loss_that_is_not_finite_ends_as_diverged(start) -> None:
    run = start("task=logreg", "division=open", "task.lr=1e38", "task.l2=1.0")
    code, output = run.finish()
    assert code == 1, output
    assert run.record().status == "diverged"


def test_a_full_disk_is_an_error_that_names_the_path() -> None:
    with pytest.raises(UserError, match="/dev/full"):
        events.append(Path("/dev/full"), "validation", 1)

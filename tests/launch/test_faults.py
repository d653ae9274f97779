"""What happens when something dies in the middle of a run: real processes, really killed."""

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


def test_a_killed_worker_is_restarted_from_the_last_checkpoint_and_the_clock_runs_on(start) -> None:
    run = start("goal=none", "division=open", "task.epochs=24", "task.width=4", "max_failures=1", "seed=3")
    run.await_validation(3)
    run.workers()[0].kill()
    code, output = run.finish()
    assert code == 0, output
    record = run.record()
    assert record.status == "completed" and len(record.restarts) == 1
    assert record.epochs == 24 and record.steps == 24 * 22
    elapsed = [validation["elapsed"] for validation in record.validations]
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

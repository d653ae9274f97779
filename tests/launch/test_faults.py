"""What happens when something dies in the middle of a run: real processes, really killed."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from commands import CACHE, Run, listening, training_processes, until
from zips import with_store

from mlbench.clusters import node
from mlbench.config.errors import UserError
from mlbench.record import events

pytestmark = pytest.mark.slow
LONG = ("goal=none", "division=open", "task.epochs=400", "task.width=4")
STORE = f"--object_store_memory={node.OBJECT_STORE_BYTES}"  # a word of the raylet's command


def raylet(run: Run) -> psutil.Process:
    """Return the process that has started the run's workers."""
    parent = run.workers()[-1].parent()
    assert parent is not None
    return parent


@pytest.fixture
def start(kept_ray: dict[str, str], tmp_path: Path, data_root: Path, empty_store: Path):
    runs: list[Run] = []
    with_store(tmp_path, empty_store)

    def begin(*overrides: str) -> Run:
        runs.append(Run(kept_ray, tmp_path, data_root, *overrides))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.wait()
        if run.process.stdout:
            run.process.stdout.close()
    until(lambda: not training_processes(kept_ray))


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory, data_root: Path, empty_store: Path) -> Iterator[Run]:
    """Yield a run on a Ray of its own, one of whose workers is frozen.

    It has to wait for several time-outs, which it can do while other tests run.
    """
    folder = tmp_path_factory.mktemp("stuck")
    own = {**os.environ, CACHE: str(folder), "MLBENCH_MACHINE_LOCK": str(folder / "lock")}
    run = Run(own, with_store(folder / "runs", empty_store), data_root, *LONG, "backend.timeout_s=30")
    run.await_validation(1)
    frozen = run.workers()[-1]
    frozen.suspend()
    yield run
    with suppress(psutil.NoSuchProcess):
        frozen.kill()
    run.process.kill()
    run.process.wait()


def only_loopback(environment: dict[str, str]) -> None:
    """Assert that this Ray and its run listen, and on loopback alone."""
    sockets = set(listening(environment))
    assert {address for _, address in sockets} <= {"127.0.0.1", "::1"}, sorted(sockets)
    names = " ".join(name for name, _ in sockets)
    assert all(name in names for name in ("gcs_server", "raylet", "python", "ray::RayTrainW")), names


@pytest.mark.usefixtures("stuck")
def test_a_run_listens_on_loopback_alone_and_a_killed_worker_fails_it_in_one_sentence(
    start, kept_ray: dict[str, str]
) -> None:
    """Only a run on Ray has all of its servers' sockets, and Ray's own word of a worker that was killed."""
    run = start(*LONG)
    run.await_validation(2)
    only_loopback(kept_ray)
    assert STORE in raylet(run).cmdline()
    run.workers()[-1].kill()
    code, output = run.finish()
    record = run.record()
    assert code == 1 and record.status == "failed"
    assert record.error is not None and "died" in record.error and "rank" in record.error
    assert record.error in " ".join(output.split())
    assert len(record.validations) >= 2 and record.time_to_accuracy is None
    assert "Traceback" not in output


def test_a_killed_server_of_ray_ends_the_run_and_is_told(
    tmp_path: Path, data_root: Path, empty_store: Path
) -> None:
    """Only a Ray of the run's own can lose its server: the command would wait in Ray for a minute."""
    environment = {**os.environ, CACHE: str(tmp_path)}
    run = Run(environment, with_store(tmp_path / "runs", empty_store), data_root, *LONG)
    run.await_validation(1)
    assert STORE in raylet(run).cmdline()
    children = psutil.Process(run.process.pid).children(recursive=True)
    next(child for child in children if child.name() == "gcs_server").kill()
    code, output = run.finish()
    record = run.record()
    assert code == 1 and record.status == "failed", output
    assert record.error is not None and "(GCS) has died" in record.error
    assert record.error in " ".join(output.split()) and "Traceback" not in output
    assert len(record.validations) >= 1
    until(lambda: not training_processes(environment))


@pytest.mark.wing("mpi")
def test_a_killed_command_repeats_cleanly_goes_on_after_the_death_of_a_worker_and_ends_at_ctrl_c(
    start, kept_ray: dict[str, str]
) -> None:
    """Only Ray ends the workers of a killed driver, and starts others in place of those that died.

    The first run talks over MPI, which opens sockets of its own beside those of gloo's group of control. That
    SIGTERM does what Ctrl-C does: test_sweep.py, and test_faulty_tasks.py while Ray starts.
    """
    run = start(*LONG, "backend=mpi", "seed=3")
    run.await_validation(2)
    only_loopback(kept_ray)
    run.process.kill()
    run.process.communicate()
    first = run.folder
    log = events.read(first / events.NAME)
    assert [event["key"] for event in log][0] == "run_configuration"
    assert not (first / "record.json").exists()
    until(lambda: not run.workers())
    run = start(*LONG, "max_failures=1", "seed=3")
    until(lambda: run.folder != first or run.process.poll() is not None)
    run.await_validation(3)
    run.workers()[0].kill()
    until(lambda: "worker_failure" in [event["key"] for event in run.log()] or run.process.poll() is not None)
    run.await_validation(run.validations() + 2)
    run.process.send_signal(signal.SIGINT)
    code, output = run.finish()
    assert code == 130, output
    record = run.record()
    assert run.folder != first
    assert record.status == "interrupted" and len(record.restarts) == 1
    assert record.steps == 22 * record.epochs and record.contradictions == []
    assert [validation.step for validation in record.validations] == [
        22 * validation.epoch for validation in record.validations
    ]
    elapsed = [validation.elapsed for validation in record.validations]
    assert elapsed == sorted(elapsed)
    # The start of other workers lies between two validations and stays on the clock.
    first_start, restart = (event["value"] for event in run.log() if event["key"] == "startup")
    assert first_start["group_end"] < record.validations[0].wall < restart["backend_begin"]
    gaps = [after - before for before, after in pairwise(elapsed)]
    assert max(gaps) > restart["group_end"] - restart["backend_begin"] > 0
    until(lambda: not run.workers())


def test_a_stuck_collective_ends_by_a_timeout_that_names_the_missing_rank(stuck: Run) -> None:
    """Only Ray ends the processes of a group of which one is frozen and the others wait for it."""
    code, output = stuck.finish()
    record = stuck.record()
    assert code == 1 and record.status == "failed", output
    assert record.error is not None and "stuck" in record.error and "rank" in record.error


def test_a_full_disk_is_an_error_that_names_the_path() -> None:
    with pytest.raises(UserError, match="/dev/full"):
        events.append(Path("/dev/full"), "validation", 1)

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
    """Yield a run one of whose workers is frozen; it waits for several time-outs while other tests run."""
    folder = tmp_path_factory.mktemp("stuck")
    own = {**os.environ, CACHE: str(folder), "MLBENCH_MACHINE_LOCK": str(folder / "lock")}
    overrides = (*LONG, "backend.timeout_s=30", "launcher=torchrun")
    run = Run(own, with_store(folder / "runs", empty_store), data_root, *overrides)
    run.await_validation(1)
    agent = next(
        process
        for process in psutil.Process(run.process.pid).children(recursive=True)
        if "mlbench.launch.torchrun" in process.cmdline()
    )
    frozen = max(agent.children(), key=psutil.Process.create_time)
    frozen.suspend()
    yield run
    with suppress(psutil.NoSuchProcess):
        frozen.kill()
    run.process.kill()
    run.process.wait()


@pytest.mark.usefixtures("stuck")
@pytest.mark.plugin("mpi")
def test_a_run_listens_on_loopback_alone_and_its_workers_end_with_a_killed_command(
    start, kept_ray: dict[str, str]
) -> None:
    """Only a run on Ray has all of its servers' sockets, and MPI's beside those of the group of control."""
    run = start(*LONG, "backend=mpi")
    run.await_validation(1)
    sockets = set(listening(kept_ray))
    assert {address for _, address in sockets} <= {"127.0.0.1", "::1"}, sorted(sockets)
    names = " ".join(name for name, _ in sockets)
    assert all(name in names for name in ("gcs_server", "raylet", "python", "ray::RayTrainW")), names
    raylet = run.workers()[-1].parent()
    assert raylet is not None and STORE in raylet.cmdline()
    run.process.kill()
    run.process.communicate()
    assert run.log()[0]["key"] == "run_configuration" and not (run.folder / "record.json").exists()
    until(lambda: not run.workers())


def test_a_run_goes_on_after_the_death_of_a_worker_and_fails_in_one_sentence_at_the_next(start) -> None:
    """Only Ray starts others in place of workers that died."""
    run = start(*LONG, "max_failures=1")
    run.await_validation(3)
    run.workers()[0].kill()
    until(lambda: "worker_failure" in [event["key"] for event in run.log()] or run.process.poll() is not None)
    run.await_validation(run.validations() + 2)
    run.workers()[-1].send_signal(signal.SIGSEGV)
    code, output = run.finish()
    record = run.record()
    assert code == 1 and record.status == "failed", output
    assert record.error is not None and "died: Segmentation fault. Log of rank" in record.error
    assert record.error in " ".join(output.split()) and "Traceback" not in output
    assert record.time_to_accuracy is None
    assert len(record.restarts) == 1 and record.contradictions == []
    assert record.steps == 22 * record.epochs
    assert [each.step for each in record.validations] == [22 * each.epoch for each in record.validations]
    elapsed = [validation.elapsed for validation in record.validations]
    assert elapsed == sorted(elapsed)
    # The start of other workers lies between two validations and stays on the clock.
    first_start, restart = (event["value"] for event in run.log() if event["key"] == "startup")
    assert first_start["group_end"] < record.validations[0].wall < restart["backend_begin"]
    gaps = [after - before for before, after in pairwise(elapsed)]
    assert max(gaps) > restart["group_end"] - restart["backend_begin"] > 0
    until(lambda: not run.workers())


def test_a_killed_server_of_ray_ends_the_run_and_is_told(
    tmp_path: Path, data_root: Path, empty_store: Path
) -> None:
    """Only a Ray of the run's own can lose its server: the command would wait in Ray for a minute."""
    environment = {**os.environ, CACHE: str(tmp_path)}
    run = Run(environment, with_store(tmp_path / "runs", empty_store), data_root, *LONG)
    run.await_validation(1)
    children = psutil.Process(run.process.pid).children(recursive=True)
    next(child for child in children if child.name() == "gcs_server").kill()
    code, output = run.finish()
    record = run.record()
    assert code == 1 and record.status == "failed" and record.validations, output
    assert record.error is not None and "(GCS) has died" in record.error
    assert record.error in " ".join(output.split()) and "Traceback" not in output
    until(lambda: not training_processes(environment))


def test_a_stuck_collective_ends_by_a_timeout_that_names_the_missing_rank(stuck: Run) -> None:
    code, output = stuck.finish()
    record = stuck.record()
    assert code == 1 and record.status == "failed", output
    assert record.error is not None and "stuck" in record.error and "rank 1" in record.error


def test_a_full_disk_is_an_error_that_names_the_path() -> None:
    with pytest.raises(UserError, match="/dev/full"):
        events.append(Path("/dev/full"), "validation", 1)

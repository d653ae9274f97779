"""One run from a validated experiment to its record: reuse a finished run, or train and conclude."""

import itertools
import secrets
import shlex
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlbench
from mlbench.clusters import connection as clusters
from mlbench.experiment import clock, events, identity, provenance
from mlbench.experiment.build_record import build_record
from mlbench.experiment.config import Experiment
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import RayIds, Record, RunEnd, RunStart, Software, WorkerResult
from mlbench.launch import signals
from mlbench.launch.driver import POLL_S, Assignment, fit
from mlbench.launch.failures import WorkersFailed
from mlbench.launch.heartbeat import HeartbeatServer
from mlbench.tasks import registry
from mlbench.terminal import live_view, show
from mlbench.tracking import uploader

STORE_WAIT_S = 60  # s that the end of a run waits for MLflow before it leaves the rest to `results sync`
STORE_WAIT_LEAVING_S = 5  # s, likewise where somebody wants out


def execute(
    experiment: Experiment,
    *,
    begun: float | None = None,
    overrides: Sequence[str] = (),
) -> Record:
    """Measure the experiment, or return the record of a finished run that stands for it.

    `begun` is the wall clock at which the command started; start-up time counts from there.
    """
    begun = begun or clock.wall()
    if experiment.seed is not None and not experiment.force:
        found = already_measured(experiment)
        if found is not None:
            show.reused(found, experiment)
            return found
    seed = secrets.randbelow(2**31) if experiment.seed is None else experiment.seed
    experiment = experiment.model_copy(
        update={
            "data_root": experiment.data_root.absolute(),
            "output_root": experiment.output_root.absolute(),
        }
    )
    check_data(experiment)
    command = provenance.without_credentials(shlex.join(["python", "-m", "mlbench.run", *overrides]))
    folder = _folder(experiment, seed, begun)
    log = folder / events.NAME
    start = RunStart(
        run_id=folder.name,
        key=identity.key(experiment),
        command=command,
        mlbench=mlbench.__version__,
        experiment=experiment,
        seed=seed,
        begun=begun,
        deviations=list(experiment.deviations),
        warnings=provenance.warnings(before_run=True),
        software=Software.model_validate(provenance.software()),
    )
    mirror = uploader.Mirror(folder, experiment.store)  # takes the run, before anybody can find it in its log
    events.append(log, "run_configuration", start.model_dump(mode="json"))
    mirror.start()
    end, raised = _measure(experiment, seed=seed, begun=begun, folder=folder)
    events.append(log, "run_result", end.model_dump(mode="json"))
    result = build_record(events.read(log))
    result.save(folder)
    events.append(log, "run_stop", {"status": result.status}, kind="INTERVAL_END")
    leaving = raised is not None or result.status == "interrupted"
    where = mirror.finish(wait=STORE_WAIT_LEAVING_S if leaving else STORE_WAIT_S)
    if raised is not None:
        raise raised
    show.card(result, folder=folder, where=where, tracking_uri=experiment.store)
    return result


def already_measured(experiment: Experiment) -> Record | None:
    """Return a finished run that stands for the experiment with its seed: same key, same data.

    Files of the user's own are looked for by every node of a cluster, so nobody can tell here whether they
    are still those that were measured: such a run is measured again.
    """
    task = experiment.task
    if registry.own_data(task) and not clusters.shares_files(experiment):
        return None
    try:
        registry.require_data(task, experiment.scale, experiment.data_root)
    except UserError:
        data = None  # official data need not be here to show what was measured on it
    else:
        data = check_data(experiment)
    return uploader.find_finished(experiment, data=data)


def check_data(experiment: Experiment) -> str | None:
    """Make small data now; ask for official data to be prepared, which can take hours.

    Returns the hash that identifies the data as it is here; None for a task without data, and on a cluster,
    whose nodes look for themselves.
    """
    from mlbench.datasets import arrow  # pyarrow is slow to import, and --help needs none

    task = experiment.task
    if not clusters.shares_files(experiment) or task.dataset == registry.NO_DATASET:
        return None
    registry.require_data(task, experiment.scale, experiment.data_root)
    return arrow.manifest_hash(registry.load(task.name).prepare(task, experiment.data_root))


def _folder(experiment: Experiment, seed: int, begun: float) -> Path:
    """Make the run's own folder; its name is the run's id, sorts by time and ends in the seed.

    A second run of the same millisecond and seed gets a number.
    """
    stamp = clock.iso(begun)[:23].replace(":", "").replace(".", "-")
    name = f"{stamp}-{experiment.task.name}-w{experiment.workers}"
    for number in itertools.count(1):
        folder = experiment.output_root / f"{name}{f'-{number}' if number > 1 else ''}-{seed:x}"
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(
                f"cannot make {folder}: {error.strerror}", hint="give another output_root"
            ) from error
    return folder


def _measure(
    experiment: Experiment, *, seed: int, begun: float, folder: Path
) -> tuple[RunEnd, BaseException | None]:
    """Train on the cluster while showing progress; return how it ended, and what the caller has to raise.

    That is raised once the run has its record: a mistake of the user's, which may show hours into the
    training, or a fault of the program's.
    """
    stamps = {"connect_begin": clock.wall()}
    result: WorkerResult | None = None
    status = error_text = raised = None
    oversubscribed, ray_ids = False, RayIds()
    try:
        with live_view.RunView(experiment, seed, command_started=begun) as progress:
            progress.say(f"starting Ray ({experiment.cluster.name})")
            # ray.init replaces signal handlers, so ours come after it.
            with clusters.connect(experiment) as connection, signals.interruptible():
                stamps["connect_end"] = clock.wall()
                oversubscribed = connection.oversubscribed
                ray_ids = RayIds(job_id=connection.job_id, node_ids=connection.node_ids)
                progress.connected(connection)
                receiver = HeartbeatServer(connection.host)
                told = Assignment(experiment, seed, connection.threads, receiver.address, receiver.token)
                with _watching(receiver, events.Follower(folder / events.NAME), progress):
                    result = fit(told, connection, folder)
    except KeyboardInterrupt:
        status, error_text = "interrupted", "stopped by the user (Ctrl-C or SIGTERM)"
    except WorkersFailed as error:
        status, error_text = "failed", str(error)
    except Exception as error:  # whatever it is, the run has failed and its record says so
        status, raised = "failed", error
        error_text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    end = RunEnd(
        status=status,
        error=error_text,
        ended=clock.wall(),
        stamps=stamps,
        oversubscribed=oversubscribed,
        ray=ray_ids,
        result=result,
    )
    return end, raised


@contextmanager
def _watching(receiver: HeartbeatServer, follower: events.Follower, progress: Any) -> Iterator[None]:
    """Show, in a thread, what the workers say and what the event log gets while the block runs."""
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            for sign in receiver.poll(wait=POLL_S):
                progress.heartbeat(sign)
            for event in follower.take():
                progress.event(event)
        for event in follower.take():
            progress.event(event)
        receiver.close()

    with ThreadPoolExecutor(1, thread_name_prefix="progress") as pool:
        watched = pool.submit(watch)
        try:
            yield
        finally:
            over.set()
        watched.result()

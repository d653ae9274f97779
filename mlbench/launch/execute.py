"""One run from a validated experiment to its record: reuse a finished run, or train and record."""

import glob
import itertools
import logging
import os
import platform
import secrets
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import mlbench
from mlbench import clock
from mlbench.clusters import connection as clusters
from mlbench.clusters import node, persistent, placement
from mlbench.clusters.connection import Connection
from mlbench.clusters.machine_lock import MachineLock
from mlbench.clusters.monitor import CpuUse, own_processes
from mlbench.config import identity, libraries, plugins
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment, TrainingConfig
from mlbench.datasets import own_files
from mlbench.launch import cache, numa_binding, process_group, rank_logs, signals, torchrun
from mlbench.launch.event_stream import EventStream
from mlbench.launch.failures import WorkersFailed, root_cause
from mlbench.launch.output import Display, Output
from mlbench.launch.watch import Watch, starting
from mlbench.launch.worker_process import WorkerSpec, train_loop_per_worker
from mlbench.probe import sender
from mlbench.record import events, provenance, stream, study
from mlbench.record.build_record import build_record, worker_result
from mlbench.record.noise import Interference
from mlbench.record.record import RayIds, Record, RunEnd, RunStart
from mlbench.tasks import registry
from mlbench.tracking import uploader
from mlbench.training import compilation

STORE_WAIT_S = 60  # s that the end of a run waits for MLflow before it leaves the rest to `results sync`
ABORT_STORE_WAIT_S = 5  # s, likewise if the run was aborted
STOPPED = "stopped by the user (Ctrl-C, SIGTERM or SIGHUP)"
CONTROL = "gloo"  # of torch's process group if another framework sends the gradients itself


def execute(
    experiment: Experiment,
    *,
    begun: float | None = None,
    overrides: Sequence[str] = (),
    output: Output | None = None,
) -> Record:
    """Measure the experiment, or return the cached record of an identical finished run.

    A run leaves a folder with the event log and the record, however it ends.

    - begun: the wall clock at which the command started. Start-up time counts from there, less the time spent
      waiting for another run on this machine.
    - output: (default: none) shows the run, and draws its figures.
    """
    check_launcher(experiment)
    begun = begun or clock.wall()
    output = output or Output()
    cached = reused(experiment, output)
    if cached is not None:
        return cached
    tell_store(experiment, output)
    experiment, seed = resolved(experiment)
    with signals.interruptible(), machine(experiment, output) as lock:
        begun += lock.waited_s if lock else 0.0
        folder = new_folder(experiment, seed, begun)
        log = folder / events.NAME
        start = run_start(experiment, folder, seed=seed, begun=begun, overrides=overrides)
        if os.environ.get(stream.VARIABLE):
            display: Display = EventStream(log)
        else:
            display = output.display(experiment, seed, command_started=begun)
        # It takes the run before anybody can find it in its log.
        mlflow = uploader.MlflowUploader(folder, experiment.store, draw=output.figures)
        values = start.model_dump(mode="json")
        events.append(log, "run_configuration", values)
        tell_run(experiment, values)
        mlflow.start()
        try:
            end, exception = _measure(
                experiment,
                seed=seed,
                display=display,
                folder=folder,
                lock=lock,
                give_up=lambda why: _give_up(folder, mlflow, why, output),
            )
            record = conclude(folder, end)
        except BaseException:  # e.g. a full disk. `results sync` may then take the run
            mlflow.finish(wait=0)
            raise
        aborting = exception is not None or record.status == "interrupted"
        where = mlflow.finish(wait=ABORT_STORE_WAIT_S if aborting else STORE_WAIT_S)
        if isinstance(display, EventStream):
            with suppress(OSError, ValueError):  # its reader has closed it
                display.end()
        if exception is not None:
            raise exception
        output.card(record, folder=folder, where=where, tracking_uri=experiment.store)
        return record


def tell_store(experiment: Experiment, output: Output) -> None:
    """Warn that MLFLOW_* variables are not read for the store, if they are set and tracking_uri is not."""
    names = [name for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME") if name in os.environ]
    if names and experiment.tracking_uri is None:
        what = f"mlbench: {' and '.join(names)}: not read, the run goes to {experiment.store}"
        output.sentence(f"{what} (tracking_uri=URI names another store)")


def reused(experiment: Experiment, output: Output) -> Record | None:
    """Show the cached record of an identical finished run, and return it. None without one."""
    if experiment.seed is None or experiment.force:
        return None
    cached = find_cached(experiment)
    if cached is not None:
        output.reused(cached, experiment)
    return cached


def resolved(experiment: Experiment) -> tuple[Experiment, int]:
    """Return the experiment with absolute paths, and its seed. Raises UserError if it cannot be measured."""
    seed = secrets.randbelow(2**31) if experiment.seed is None else experiment.seed
    experiment = experiment.model_copy(
        update={
            "data_root": experiment.data_root.absolute(),
            "output_root": experiment.output_root.absolute(),
        }
    )
    if clusters.shares_files(experiment):
        placement.require_room(experiment)
        numa_binding.require(experiment)
    check_data(experiment)
    return experiment, seed


def check_launcher(experiment: Experiment) -> None:
    """Raise UserError for launcher=command, which only `mlbench.measure` starts."""
    if experiment.launcher == "command":
        raise UserError("launcher=command measures a command", hint="mlbench measure -- COMMAND")


def check(experiment: Experiment) -> None:
    """Raise UserError for what cannot be measured on any machine, and for data that are not prepared."""
    task = experiment.task
    if experiment.launcher == "ray" and hasattr(clusters.load(experiment.cluster.name), "connect"):
        libraries.require("ray", user="launcher=ray", hint="launcher=torchrun trains without it")
    if experiment.tracking_uri is not None:
        libraries.require("mlflow", user="tracking_uri=", hint="leave it out")
    for name, verb in (("profile", "record"), ("compile", "compile")):
        if (value := getattr(experiment, name)) and not isinstance(task, TrainingConfig):
            sentence = f"task={task.name} trains no steps that {name}={value} could {verb}"
            raise UserError(sentence, hint=f"leave {name}= out")
    registry.check(task, workers=experiment.workers, folder=None)
    if clusters.shares_files(experiment):
        registry.require_libraries(task.name)
        compilation.require(experiment.compile, experiment.backend.device)
        if isinstance(task, TrainingConfig) and task.precision in task.CPU_ONLY:
            import torch  # only here: it takes seconds

            from mlbench.training import precision

            precision.require_lstm(task.precision, torch.device(experiment.backend.device))
        if experiment.framework != plugins.TORCH:
            plugins.framework(experiment.framework).require()
        registry.require_data(task, experiment.scale, experiment.data_root)
        for path in own_files.together(task, task.OWN_DATA):
            if not path.exists() and not any(path.parent.glob(f"{glob.escape(path.name)}.*")):
                raise UserError(f"{path} does not exist", hint="give an existing path")


def check_folder(name: str, folder: Path) -> None:
    """Raise UserError for a folder that cannot be made or written to. Leave no file behind."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()  # it never has a name
    except OSError as error:
        sentence = f"{name}={folder}: cannot make a folder in {there}: {error.strerror}"
        raise UserError(sentence, hint=f"give another {name}") from error


def submitted() -> float | None:
    """Return when the cluster around this process was requested (s since 1970), if that is set."""
    try:
        return float(os.environ[stream.SUBMITTED])
    except (KeyError, ValueError):
        return None


@contextmanager
def machine(experiment: Experiment, output: Output) -> Iterator[MachineLock | None]:
    """Lock this machine for the run if the workers are on it. Wait for another run that holds it."""
    if not clusters.shares_files(experiment):
        yield None  # the workers take theirs
        return

    def tell_waiting() -> None:
        output.sentence(
            "mlbench: waiting for another run that measures on this machine (cluster.exclusive=false starts "
            "now and marks both)"
        )
        _tell_sweep(experiment, study.WAITING, pid=os.getpid())

    lock = MachineLock()
    # A command that is measured has the machine, and waits for this one.
    wait = getattr(experiment.cluster, "exclusive", True) and sender.ADDRESS not in os.environ
    lock.acquire(wait=wait, on_wait=tell_waiting)
    if lock.waited_s:
        _tell_sweep(experiment, study.WAITING, pid=os.getpid(), waited_s=lock.waited_s)
    try:
        yield lock
    finally:
        lock.release()


def tell_run(experiment: Experiment, start: Mapping[str, Any]) -> None:
    """Name a run that begins in its study's log: no end of its command, and no deletion, hides it then."""
    trial = study.trial_id(start["key"], start["seed"])
    _tell_sweep(experiment, study.RUN, trial=trial, run_id=start["run_id"])


def _tell_sweep(experiment: Experiment, key: str, **value: Any) -> None:
    """Report the run to the sweep whose trial it is, if any."""
    if experiment.study:
        log = study.folder(experiment.output_root.absolute(), experiment.study) / study.LOG
        if log.exists():
            events.append(log, key, value)


def conclude(folder: Path, end: RunEnd) -> Record:
    """Complete the log, and write the record that it gives."""
    log, value = folder / events.NAME, events.visible(end.model_dump(mode="json"))
    events.append(log, "run_result", value, **events.checksum(events.read(log), value))
    record = build_record(events.read(log))
    record.save(folder)
    events.append(log, "run_stop", {"status": record.status}, kind="INTERVAL_END")
    return record


def _give_up(folder: Path, mlflow: uploader.MlflowUploader, why: str, output: Output) -> None:
    """End this process from a thread, with a record: the main thread waits in Ray and never returns."""
    end = RunEnd(status="failed", error=why, ended=clock.wall(), stamps={}, hostname=platform.node())
    conclude(folder, end)
    mlflow.finish(wait=ABORT_STORE_WAIT_S)
    output.sentence(f"mlbench: failed: {why}. Its record is in {folder}")
    os._exit(1)


def command(overrides: Sequence[str]) -> str:
    """Return the command line that a record names, without credentials."""
    return without_credentials(shlex.join(["python", "-m", "mlbench.run", *overrides]))


def run_start(
    experiment: Experiment, folder: Path, *, seed: int, begun: float, overrides: Sequence[str]
) -> RunStart:
    """Return what is known when a run begins in this process."""
    software = provenance.software()
    if folder_of_script := getattr(experiment.task, "cwd", None):
        checkout = provenance.git(Path(folder_of_script), within=True)
        software = software.model_copy(update={"script_git": checkout})
    return RunStart(
        run_id=folder.name,
        key=identity.key(experiment),
        command=command(overrides),
        mlbench=mlbench.__version__,
        experiment=experiment,
        seed=seed,
        begun=begun,
        submitted=submitted(),
        deviations=list(experiment.deviations),
        warnings=node.warnings(),
        software=software,
    )


def find_cached(experiment: Experiment) -> Record | None:
    """Return the cached record of a finished run with the experiment's key, seed and data.

    Every node of a cluster looks for custom files itself. This process cannot check whether they have
    changed, so such a run is measured again.
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
    return cache.find_cached(experiment, data=data)


def check_data(experiment: Experiment) -> str | None:
    """Make small data now. Raise UserError for missing official data, which can take hours to prepare.

    Returns the hash that identifies the data as it is here. Returns None for a task without data, and on a
    cluster, whose nodes check their data.
    """
    from mlbench.datasets import verify  # pyarrow is slow to import, and --help needs none

    task = experiment.task
    check(experiment)
    if not clusters.shares_files(experiment) or task.dataset == registry.NO_DATASET:
        return None
    folder = registry.load(task.name).prepare(task, experiment.data_root)
    registry.check(task, workers=experiment.workers, folder=folder)
    return verify.content(folder).data_hash


def new_folder(experiment: Experiment, seed: int, begun: float) -> Path:
    """Make the run's folder. Its name is the run's id, sorts by time and ends in the seed.

    A second run of the same millisecond and seed gets a number.
    """
    stamp = clock.iso(begun)[:23].replace(":", "").replace(".", "-")
    name = f"{stamp}-{experiment.task.name}-w{experiment.workers}"
    folder = experiment.output_root
    try:
        folder.mkdir(parents=True, exist_ok=True)  # fails if it is a link to nothing
        for number in itertools.count(1):
            folder = experiment.output_root / f"{name}{f'-{number}' if number > 1 else ''}-{seed:x}"
            with suppress(FileExistsError):
                folder.mkdir()
                break
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}", hint="give another output_root") from error
    return folder


def _memory_ran_out() -> str:
    """Return the sentence for a run of which the kernel killed a process, with how much memory there was."""
    limit = node.memory_limit()
    what = f"the control group's, {limit / 2**30:.1f} GiB," if limit else "the machine's"
    return f"the kernel killed a process here as {what} memory ran out: use fewer workers or a smaller batch"


def _measure(
    experiment: Experiment,
    *,
    seed: int,
    display: Display,
    folder: Path,
    lock: MachineLock | None,
    give_up: Callable[[str], None],
) -> tuple[RunEnd, BaseException | None]:
    """Train on the cluster while showing progress. Return how it ended, and what the caller has to raise.

    That is raised once the run has its record. It is a user error, which may appear hours into the training,
    or a bug. `give_up` ends the process if Ray's start never returns.
    """
    stamps = {"connect_begin": clock.wall()}
    status: str | None = None  # what the workers report
    error: str | None = None
    exception: BaseException | None = None
    joined: Connection | None = None
    interference: Interference | None = None
    log = folder / events.NAME
    watch = Watch(log, display)
    before = CpuUse(own=lambda: own_processes(persistent.servers()))
    kills = node.oom_kills()
    try:
        with watch, ExitStack() as cluster:
            on_ray = experiment.launcher == "ray"
            starts = f"starting torchrun ({experiment.cluster.name})"
            watch.show("say", clusters.beginning(experiment) if on_ray else starts)
            with starting(give_up) if on_ray else nullcontext():
                connection = (
                    cluster.enter_context(clusters.connect(experiment))
                    if on_ray
                    else torchrun.connection(experiment)
                )
            # ray.init replaces signal handlers, so ours are set again after it.
            with watch.connected(connection) as heartbeats, signals.interruptible():
                stamps["connect_end"] = clock.wall()
                interference = before.interference() if lock else None
                joined = connection
                spec = WorkerSpec(
                    experiment,
                    seed,
                    connection.threads,
                    heartbeats.address,
                    heartbeats.token,
                    log=str(log.absolute()),
                    driver=os.getpid() if lock else None,
                    epoch=clock.epoch(),
                )
                if on_ray:
                    run_workers(spec, connection, folder)
                else:
                    torchrun.run_workers(spec, folder)
    except (KeyboardInterrupt, SystemExit):  # Ray's handler of SIGTERM raises the second while it starts
        status, error = ("failed", watch.lost) if watch.lost else ("interrupted", STOPPED)
    except WorkersFailed as failure:
        status, error = "failed", watch.lost or str(failure)
    except Exception as failure:  # whatever it is, the run has failed and its record shows it
        sentence = str(failure) if isinstance(failure, UserError) else f"{type(failure).__name__}: {failure}"
        status, error, exception = "failed", sentence, failure
    result = worker_result(events.read(log))
    if result is not None:  # whatever ended afterwards, the run had finished
        status, error, exception = None, None, None
    if status == "failed" and kills is not None and (node.oom_kills() or 0) > kills:
        error = f"{error}; {_memory_ran_out()}"
    end = RunEnd(
        status=status,
        error=error,
        ended=clock.wall(),
        stamps=stamps,
        hostname=platform.node(),
        oversubscribed=joined is not None and joined.oversubscribed,
        interference=interference,
        machine_shared=lock is not None and lock.shared,
        ray=RayIds(job_id=joined.job_id, node_ids=joined.node_ids) if joined else RayIds(),
        extras=joined.extras if joined else {},
        result=result,
    )
    return end, exception


def run_workers(spec: WorkerSpec, connection: Connection, folder: Path) -> None:
    """Train by Ray until the workers end. Raise UserError or WorkersFailed in one sentence if they fail.

    Call it from the main thread: there a signal ends the wait for Ray. All that the workers report travels
    through `ray.train.report` to the controller, which runs on this machine and appends it to the event log.
    Nothing else leaves a worker while the clock runs.
    """
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

    from mlbench.launch.ray_hooks import EventLogCallback, ProcessGroupConfig
    from mlbench.launch.ray_train_private import LeanTrainer

    experiment, backend = spec.experiment, spec.experiment.backend
    torchs = experiment.framework == plugins.TORCH
    logging.getLogger("ray").setLevel(logging.INFO if experiment.verbose else logging.ERROR)
    trainer = LeanTrainer(
        train_loop_per_worker,
        train_loop_config={"spec": spec},
        backend_config=ProcessGroupConfig(
            backend=backend.name if torchs else CONTROL,
            timeout_s=backend.timeout_s,
            module=backend.module,
            interface=connection.interface or backend.interface,
            sockets=backend.sockets if backend.name == "gloo" else None,
            variables=process_group.environment(backend),
            log=str((folder / events.NAME).absolute()),
            epoch=spec.epoch,
        ),
        scaling_config=ScalingConfig(
            num_workers=experiment.workers,
            use_gpu="GPU" in connection.resources,
            resources_per_worker=connection.resources,
            placement_strategy=connection.placement,
            label_selector=connection.label_selector,
        ),
        run_config=RunConfig(
            name=folder.name,
            storage_path=str(folder.parent.absolute() / "ray"),
            # A run that loses a node is void unless the user allowed restarts, and then they are counted.
            failure_config=FailureConfig(
                max_failures=experiment.max_failures,
                max_preemption_failures=0,
                controller_failure_limit=experiment.max_failures,
            ),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            callbacks=[EventLogCallback(folder / events.NAME)],
        ),
    )
    try:
        trainer.fit()
    except KeyboardInterrupt:
        if connection.lost() is None:  # else no reader is left
            trainer.stop()
        raise
    except Exception as error:
        starts = [event for event in events.read(folder / events.NAME) if event["key"] == "startup"]
        logs = starts[-1]["metadata"].get("logs", []) if starts else []
        places = rank_logs.kept(logs, folder)
        raise rank_logs.named(root_cause(error, places), places) from error

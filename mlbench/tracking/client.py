"""Write to an MLflow store. The only module that imports mlflow, and never before it is used.

Writing is idempotent. MLflow drops a metric that it already has (same name, value, time and step), and
accepts a param again with its old value. A run is found by its `mlbench.run_id`. So a writer that was
interrupted, by a dead server or by its death, writes everything once more.
"""

import json
import os
import re
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from mlbench.config import own_variables
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import ResultError, UserError
from mlbench.config.store_uri import check_store
from mlbench.record import temporary_folder
from mlbench.record.record import Record
from mlbench.tracking import mlflow_private, ui
from mlbench.tracking.mapping import COMPLETE, IMPORTED, MLFLOW_STATUS, RUN_ID, Metric

Result = TypeVar("Result")

EXPERIMENT = "mlbench"
# What MLflow accepts as one name and value (mlflow.utils.validation, 3.17, 2026). Its client parts requests.
PARAM_CHARACTERS = 6000
TAG_CHARACTERS = 8000
NAME_CHARACTERS = 250
DIGEST_CHARACTERS = 36
SQLITE = "sqlite:///"
ARTIFACTS = "artifacts"  # folder of a new store's files, in output_root
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",  # no chatter about migrations
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # callers retry, and stop on their conditions
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # s
}


class TrackingClient:
    """One experiment in one MLflow store. `uri` is the store's."""

    def __init__(self, client: Any, experiment_id: str, uri: str) -> None:
        self.mlflow = client
        self.experiment_id = experiment_id
        self.uri = uri

    def find(self, run_id: str) -> Any | None:
        """Return MLflow's run of the mlbench run with this id."""
        return next(self.search(f"tags.`{RUN_ID}` = '{run_id}'"), None)

    def run_id(self, mlflow_id: str) -> str | None:
        """Return the mlbench run that has this id in MLflow."""
        run = next(self.search(f"attributes.run_id = '{mlflow_id}'"), None)
        return run.data.tags.get(RUN_ID) if run else None

    def complete(self, *, page_s: float) -> set[str]:
        """Return the ids of the mlbench runs that are here in full, or were until a person deleted them.

        page_s: s that the store has for every page of its answer. Raises TimeoutError if it takes longer.
        """
        if self.uri.startswith(SQLITE):
            with suppress(sqlite3.Error):  # another version's tables: use MLflow's API
                database = Path(self.uri.removeprefix(SQLITE))
                return mlflow_private.tag_values(database, self.experiment_id, tag=RUN_ID, where=COMPLETE)
        runs = self.search(f"tags.`{COMPLETE}` = 'true'", deleted=True, page_s=page_s)
        return {run.data.tags[RUN_ID] for run in runs}

    def delete(self, run_id: str) -> bool:
        """Delete the runs of this mlbench run. MLflow keeps them as deleted until `mlflow gc`."""
        matches = list(self.search(f"tags.`{RUN_ID}` = '{run_id}'"))
        for run in matches:
            self.mlflow.delete_run(run.info.run_id)
        return bool(matches)

    def records(self, *, key: str, seed: int, statuses: Sequence[str]) -> Iterator[str]:
        """Yield the records, as JSON, of complete runs with this key, seed and status, newest first.

        Imported runs do not count, because their hardware is unknown here.
        """
        query = f"tags.`key` = '{key}' AND tags.`seed` = '{seed}' AND tags.`{COMPLETE}` = 'true'"
        for run in self.search(query):
            if run.data.tags["status"] in statuses and IMPORTED not in run.data.tags:
                with tempfile.TemporaryDirectory() as folder:
                    path = self.mlflow.download_artifacts(run.info.run_id, "record.json", folder)
                    yield Path(path).read_text("utf-8")

    def fetch(self, run_id: str, name: str, folder: Path) -> None:
        """Copy one of a run's files into the folder."""
        run = self.find(run_id)
        assert run is not None, run_id
        self.mlflow.download_artifacts(run.info.run_id, name, str(folder))

    def search(self, query: str, *, deleted: bool = False, page_s: float | None = None) -> Iterator[Any]:
        """Yield MLflow's runs that the query finds, newest first.

        Raises TimeoutError if a page takes `page_s` s.
        """
        from mlflow.entities import ViewType

        view = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
        token = None
        while True:
            ask = partial(self.mlflow.search_runs, [self.experiment_id], query, view, page_token=token)
            page = ask() if page_s is None else within(page_s, ask)
            yield from page
            token = page.token
            if not token:
                return

    def open_run(self, run_id: str, *, name: str, start_time: float, tags: dict[str, str]) -> str:
        """Return MLflow's id of the run, which is created if needed. `start_time` is wall clock, s."""
        run = self.find(run_id)
        if run is None:
            run = self.mlflow.create_run(
                self.experiment_id, start_time=round(start_time * 1000), run_name=name, tags=_short(tags)
            )
        return run.info.run_id

    def log(
        self,
        run: str,
        *,
        metrics: Sequence[Metric] = (),
        params: dict[str, str] | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        """Write to a run. Values that are too long are cut off, as the run's files have all of them."""
        from mlflow import entities

        points = [entities.Metric(m.name[:NAME_CHARACTERS], m.value, m.time_ms, m.step) for m in metrics]
        pairs = [
            entities.Param(name[:NAME_CHARACTERS], value[:PARAM_CHARACTERS])
            for name, value in (params or {}).items()
        ]
        marks = [entities.RunTag(name, value) for name, value in _short(tags or {}).items()]
        self.mlflow.log_batch(run, metrics=points, params=pairs, tags=marks)

    def log_dataset(self, run: str, record: Record) -> None:
        """Log in MLflow the data that a run was trained on, if the record has it."""
        from mlflow import entities

        task = record.experiment.task
        if not record.data_hash:
            return
        dataset = entities.Dataset(
            name=task.dataset,
            digest=record.data_hash[:DIGEST_CHARACTERS],
            source_type="local",
            source=json.dumps({"uri": f"{record.experiment.data_root}/{task.dataset}"}),
            profile=json.dumps(record.data_rows),
        )
        context = [entities.InputTag("mlflow.data.context", "training")]
        self.mlflow.log_inputs(run, datasets=[entities.DatasetInput(dataset, context)])

    def close_run(self, run: str, *, folder: Path, status: str, ended: float) -> None:
        """Upload the folder's files, end the run (`ended`: wall clock, s), and mark it complete."""
        self.mlflow.log_artifacts(run, str(folder))
        mlflow_status = MLFLOW_STATUS.get(status, "FINISHED")
        self.mlflow.set_terminated(run, status=mlflow_status, end_time=round(ended * 1000))
        self.mlflow.set_tag(run, COMPLETE, "true")


def open_client(uri: str, *, artifacts: Path | None) -> TrackingClient | None:
    """Return the store at an MLflow tracking URI.

    The files of a new store go to `artifacts` if MLflow would put them below the current directory (a plain
    database). A missing description and missing saved views are written. None only reads: a store or an
    experiment that does not exist is then not created. Raises UserError for a URI that is no store's, and
    what MLflow raises for one that does not answer.
    """
    check_store(uri)
    own_variables.add(_SETTINGS)
    if artifacts is None and uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).exists():
        return None
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    if artifacts is not None and uri.startswith(SQLITE):
        Path(uri.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    deleted = experiment is not None and experiment.lifecycle_stage == "deleted"
    if artifacts is None:
        return TrackingClient(client, experiment.experiment_id, uri) if experiment and not deleted else None
    if experiment is None:
        location = artifacts.absolute().as_uri() if uri.startswith(DATABASES) else None
        try:
            client.create_experiment(EXPERIMENT, artifact_location=location)
        except MlflowException:
            if client.get_experiment_by_name(EXPERIMENT) is None:  # another run may have just made it
                raise
        experiment = client.get_experiment_by_name(EXPERIMENT)
        assert experiment is not None
    elif deleted:  # its name stays taken, and no run is added to it
        client.restore_experiment(experiment.experiment_id)
    with suppress(MlflowException):  # a server may refuse it to users who may write runs
        for name, value in ui.tags(experiment.creation_time or 0).items():
            if experiment.tags.get(name) != value:
                client.set_experiment_tag(experiment.experiment_id, name, value)
    return TrackingClient(client, experiment.experiment_id, uri)


def preload(uri: str, *, artifacts: Path) -> bytes | None:
    """Import what `open_client` uses, and return the file of a new store if it would create one.

    Both keep a CPU busy for seconds, so call this before a training, not during it.
    """
    own_variables.add(_SETTINGS)
    with suppress(Exception):  # a failure here occurs again in the upload, which reports it
        import pyarrow  # noqa: F401
        from mlflow.tracking import MlflowClient  # noqa: F401

        if uri.startswith(DATABASES):
            from mlflow.store.tracking import sqlalchemy_store  # noqa: F401
        if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).exists():
            with temporary_folder.folder() as folder:
                open_client(f"{SQLITE}{folder}/store", artifacts=artifacts)
                return (folder / "store").read_bytes()
    return None


def place(store: bytes, uri: str) -> None:
    """Write a store that `preload` returned, unless another run has made one meanwhile."""
    path = Path(uri.removeprefix(SQLITE))
    with suppress(OSError):  # the upload makes one, or reports the failure
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(f"{path.name}.{os.getpid()}.part")
        whole.write_bytes(store)
        try:
            os.link(whole, path)
        finally:
            whole.unlink()


def _short(tags: dict[str, str]) -> dict[str, str]:
    return {name: value[:TAG_CHARACTERS] for name, value in tags.items()}


Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]]]
_calls: Calls | None = None  # what the thread that makes them takes them from


def _make(calls: Calls) -> None:
    """Make one call after the other, in a daemon thread that lasts as long as the process.

    A library may keep what belongs to the thread that used it first. Once that thread has ended, pyarrow 25
    ends the process with SIGSEGV in its allocator.
    """
    while True:
        future, call = calls.get()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        del future, call  # drop the reference to a store's last answer while it waits


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Return what the call returns. Raises TimeoutError if it takes longer, e.g. for a slow server.

    The call's thread is then left behind, because nothing ends a read that always gets one more byte.
    """
    global _calls
    if _calls is None:
        _calls = SimpleQueue()
        threading.Thread(target=_make, args=[_calls], name="mlflow-calls", daemon=True).start()
    future: Future[Result] = Future()
    _calls.put((future, call))
    if not wait([future], timeout=seconds).done:
        _calls = None
        raise TimeoutError(f"no complete answer within {seconds:g} s")
    return future.result()


@contextmanager
def reachable(uri: str) -> Iterator[None]:
    """Turn the errors of a store that is down into a UserError."""
    try:
        yield
    except UserError:
        raise  # the message already names the cause
    except Exception as error:  # whatever MLflow and what lies below it raise
        reason = without_credentials(str(error)).splitlines()[0]
        what, hint = "does not answer", "start it, or choose another with tracking_uri="
        if uri.startswith(SQLITE):
            what, hint = "cannot be used", "name another with tracking_uri="
            if re.search("not a database|malformed", reason):
                hint = "move the file away, then mlbench results sync makes it again"
        sentence = f"the MLflow store {without_credentials(uri)} {what}: {reason}"
        raise ResultError(sentence, hint=hint) from error

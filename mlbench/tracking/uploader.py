"""MLflow, written from the event log and never in its way.

The log is the truth. While a run goes on, a thread of the driver follows it and writes what is new to
MLflow; what it cannot write stays in the log, and `sync` writes it later. Both write the same entries from
the same events, so it does not matter who comes first or is killed half-way.
"""

import fcntl
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from mlbench.experiment import events, record
from mlbench.experiment.credentials import without_credentials
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record
from mlbench.report import render, run_figures
from mlbench.tasks import registry
from mlbench.tracking import mapping, parent_runs
from mlbench.tracking.client import TrackingClient, open_client
from mlbench.tracking.official_result import result_file
from mlbench.tracking.recover import recover

POLL_S = 2.0  # s between two looks at the log
RETRY_S = (1.0, 30.0)  # s, the first and the longest pause after the store refused
LAST_ATTEMPTS = 3  # once the log is complete; what fails then is left to `sync`
OUTCOMES = ("uploaded", "present", "running", "failed")  # of `sync`, for one run
ANSWER_S = 60  # s that a store has for a question
UPLOAD_S = 300  # s that it has to take one run
LOWEST_PRIORITY = 19  # the nice value that yields to everything else (POSIX)


class MlflowUploader(threading.Thread):
    """Writes a run to MLflow while it goes on; a store that is down or slow delays nothing but itself.

    `error` tells why the last attempt failed, None after one that succeeded.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        super().__init__(name="mlflow", daemon=True)
        self.error: str | None = None
        self._lock = lock(folder)
        self._transfer = RunUpload(folder, uri)
        self._ending = threading.Event()  # the log will not grow any more
        self._given_up = threading.Event()

    def run(self) -> None:
        """Follow the log until the run has ended and all is written."""
        _yield_to_others()
        pause, last_attempts = RETRY_S[0], LAST_ATTEMPTS
        while not self._given_up.is_set() and last_attempts:
            ending = self._ending.is_set()
            try:
                self._transfer.advance()
                self.error, pause = None, RETRY_S[0]
                if ending or self._transfer.complete:
                    break
                self._ending.wait(POLL_S)
            except Exception as error:  # whatever MLflow and what lies below it raise
                self.error = without_credentials(str(error))
                if ending:
                    last_attempts -= 1
                    self._given_up.wait(RETRY_S[0])
                else:
                    self._ending.wait(pause)
                    pause = min(2 * pause, RETRY_S[1])
        os.close(self._lock)

    def finish(self, *, wait: float) -> str | None:
        """Return MLflow's id of the run once all is written; None if the store refuses or `wait` s are over.

        Call it after the log's last event.
        """
        self._ending.set()
        self.join(wait)
        self._given_up.set()
        return self._transfer.run if self._transfer.complete else None


def default_uri(output_root: Path) -> str:
    """Return the tracking URI of runs that name none."""
    return f"sqlite:///{(output_root / 'mlflow.db').absolute()}"


Result = TypeVar("Result")


@dataclass(frozen=True)
class SyncResult:
    """What became of one run folder."""

    run_id: str
    outcome: Literal["uploaded", "present", "running", "failed"]  # running: left to its driver
    why: str = ""


def sync(output_root: Path, uri: str | None) -> Iterator[SyncResult]:
    """Bring every run below `output_root` into MLflow, one after the other, each exactly once.

    `uri` None means each run's own store. A run whose driver still lives is left to it; one whose driver was
    killed becomes `interrupted`. Raises UserError if a store does not answer.
    """
    complete: dict[str, set[str]] = {}
    for log in sorted(output_root.glob(f"*/{events.NAME}")):
        folder = log.parent
        opening = next((e["value"] for e in events.read(log) if e["key"] == "run_configuration"), None)
        if opening is None:
            continue
        place = uri or opening["experiment"]["tracking_uri"] or default_uri(output_root)
        if place not in complete:
            complete[place] = uploaded_runs(place)
        if opening["run_id"] in complete[place]:
            yield SyncResult(opening["run_id"], "present")
        else:
            yield upload(folder, opening["run_id"], place)


def uploaded_runs(uri: str) -> set[str]:
    """Return the ids of the runs that a store has in full, or had until a person deleted them there."""

    def ask() -> set[str]:
        client = open_client(uri, artifacts=None)
        return client.complete() if client else set()

    with reachable(uri):
        return within(ANSWER_S, ask)


def run_id_of(mlflow_id: str, uri: str) -> str | None:
    """Return the mlbench run that a store knows by its own id; None where it has none."""

    def ask() -> str | None:
        client = open_client(uri, artifacts=None)
        return client.run_id(mlflow_id) if client else None

    with reachable(uri):
        return within(ANSWER_S, ask)


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Return what the call returns; TimeoutError where it takes longer, e.g. for a server that drips bytes.

    The call's thread is left behind then: nothing ends a read that always gets one more byte.
    """
    outcome: list[Result] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="mlflow-call", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not outcome:
        raise TimeoutError(f"no complete answer within {seconds:g} s")
    return outcome[0]


@contextmanager
def reachable(uri: str) -> Iterator[None]:
    """Turn what a store raises that is down into a UserError."""
    try:
        yield
    except Exception as error:  # whatever MLflow and what lies below it raise
        reason = without_credentials(str(error)).splitlines()[0]
        raise UserError(
            f"the MLflow store {without_credentials(uri)} does not answer: {reason}",
            hint="start it, or name another with tracking_uri=",
        ) from error


def upload(folder: Path, run_id: str, uri: str) -> SyncResult:
    """Bring one run into MLflow, unless its driver still lives."""
    try:
        descriptor = lock(folder)
    except BlockingIOError:
        return SyncResult(run_id, "running")
    try:
        stopped = any(event["key"] == "run_stop" for event in events.read(folder / events.NAME))
        lost = stopped and not (folder / "record.json").exists()
        if lost and run_id in uploaded_runs(uri):
            return SyncResult(run_id, "present")  # with the record that is lost here
        if lost or not stopped:
            recover(folder)
        within(UPLOAD_S, RunUpload(folder, uri).advance)
    except Exception as error:  # one bad folder must not keep the others out
        return SyncResult(run_id, "failed", without_credentials(str(error)).splitlines()[0])
    finally:
        os.close(descriptor)
    return SyncResult(run_id, "uploaded")


class RunUpload:
    """One run on its way from its folder to a store."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.uri = folder, uri
        self.run: str | None = None  # MLflow's id
        self.complete = False
        self._follower = events.Follower(folder / events.NAME)
        self._pending: list[dict[str, Any]] = []
        self._client: TrackingClient | None = None

    def advance(self) -> None:
        """Write what the log has gained; raises what MLflow raises, and may then be called again."""
        self._pending += self._follower.take()
        if not self._pending:
            return
        if self._client is None:
            self._client = open_client(self.uri, artifacts=self.folder.absolute().parent / "artifacts")
            assert self._client is not None
        client = self._client
        for event in self._pending:
            if event["key"] == "run_configuration" and self.run is None:
                self.run = self._open(client, event["value"])
        assert self.run is not None, "a log begins with run_configuration"
        client.log(self.run, metrics=mapping.series(self._pending))
        if any(event["key"] == "run_stop" for event in self._pending):
            self._close(client, self.run)
            self.complete = True
        self._pending.clear()

    def _open(self, client: TrackingClient, start: dict[str, Any]) -> str:
        tags = mapping.opening_tags(start)
        name = start["experiment"].get("study")
        if name:
            tags[parent_runs.PARENT] = parent_runs.parent(client, self.folder.absolute().parent, name)
        run = client.open_run(start["run_id"], name=mapping.run_name(start), begun=start["begun"], tags=tags)
        client.log(run, params=mapping.params(start))
        return run

    def _close(self, client: TrackingClient, run: str) -> None:
        found = record.load(self.folder / "record.json")
        ended = datetime.fromisoformat(found.ended_at).timestamp()
        client.log(
            run,
            metrics=mapping.closing_metrics(found, ended=ended),
            tags=mapping.closing_tags(found),
        )
        with _files(self.folder, found) as files:
            client.close_run(run, folder=files, status=found.status, ended=ended)


@contextmanager
def _files(folder: Path, found: Record) -> Iterator[Path]:
    """Yield a folder with the run's files for MLflow, none of which holds a password."""
    with tempfile.TemporaryDirectory() as name:
        files = Path(name)
        clean = Record.model_validate(without_credentials(found.model_dump(mode="json")))
        clean.save(files)
        (files / "config.yaml").write_text(yaml.safe_dump(clean.experiment.plain(), sort_keys=False))
        log = [json.dumps(without_credentials(event)) + "\n" for event in events.read(folder / events.NAME)]
        (files / events.NAME).write_text("".join(log))
        result = result_file(clean)
        if result is not None:
            (files / result[0]).write_text(result[1] + "\n")
        run_figures.draw(clean, files)
        _table(clean, files)
        yield files


def _table(found: Record, files: Path) -> None:
    """Write the task's table as Parquet, and as a figure where the task has one."""
    if not found.table:
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(found.table), files / "table.parquet")
    report = registry.report(found.experiment.task.name)
    if report and found.source == "mlbench":  # others' tables have no percentiles to draw
        rate = found.experiment.hardware.network_gbit_per_s
        charts = report.charts({"": found.table}, about=found.run_id, network_gbit_per_s=rate)
        render.save(charts, files / "table.png", columns=2)


def lock(folder: Path) -> int:
    """Take the run for this process until the descriptor is closed; the kernel frees it after a kill -9.

    Raises BlockingIOError while another has it.
    """
    descriptor = os.open(folder / events.NAME, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def _yield_to_others() -> None:
    """Give this thread the lowest priority where the system has priorities of threads (Linux)."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)

"""Write MLflow from the event log, without ever delaying a run.

Everything is made from the log. While a run goes on, a thread of the driver follows it and writes what is new
to MLflow. What it cannot write stays in the log, and `sync` writes it later. Both write the same entries from
the same events. So it does not matter which of them comes first or is killed half-way.
"""

import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlbench.config import libraries
from mlbench.config.credentials import without_credentials
from mlbench.record import events, reader, temporary_folder
from mlbench.record.build_record import run_start
from mlbench.record.record import Record, RunStart
from mlbench.tracking import mapping, parent_runs, run_files, ui
from mlbench.tracking.client import ARTIFACTS, TrackingClient, open_client

POLL_S = 10.0  # s between two looks at the log, as each writing takes time from workers on the same CPUs
RETRY_S = (1.0, 30.0)  # s, the first and the longest pause after the store refused
LAST_ATTEMPTS = 3  # once the log is complete, after which failures are left to `sync`
LOWEST_PRIORITY = 19  # the nice value that yields to everything else (POSIX)
Draw = Callable[[Path], None]  # draws the figures of the run whose record is in the folder, into it


class MlflowUploader(threading.Thread):
    """Writer of a run to MLflow while it goes on. A store that is down or slow delays nothing else.

    `draw`: (default: no figures). `error` is why the last attempt failed, None after one that succeeded.
    `yields`: whether it has the lowest priority. Do not set it in a process whose other threads stamp what
    happens, for it may hold Python's lock while it waits for a CPU.
    """

    def __init__(self, folder: Path, uri: str, *, draw: Draw | None = None, yields: bool = True) -> None:
        import pyarrow  # noqa: F401  # first in a thread that lasts (client.within), and this one ends

        super().__init__(name="mlflow", daemon=True)
        self.error: str | None = None
        self._yields = yields
        self._lock = lock(folder)
        self._transfer = RunUpload(folder, uri, draw=draw)
        self._ending = threading.Event()  # the log will not grow any more
        self._given_up = threading.Event()
        if not libraries.is_installed("mlflow"):
            self._given_up.set()

    def run(self) -> None:
        """Follow the log until the run has ended, and yield to its workers."""
        if self._yields:
            with suppress(OSError):  # only Linux has priorities of threads
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        pause = RETRY_S[0]
        while not (self._ending.is_set() or self._given_up.is_set()):
            if self._advanced():
                pause = RETRY_S[0]
                self._ending.wait(POLL_S)
            else:
                self._ending.wait(pause)
                pause = min(2 * pause, RETRY_S[1])

    def finish(self, *, wait: float) -> str | None:
        """Return MLflow's id of the run once all is written.

        Returns None if the store refuses or `wait` s are over. Call it after the log's last event.
        """
        self._ending.set()
        # Training is over. On a machine that others use as well, a thread of the lowest priority would write
        # nothing. Only root can give it another (setpriority(2)), but a new thread has one.
        last = threading.Thread(target=self._write_the_rest, name="mlflow", daemon=True)
        last.start()
        last.join(wait)
        self._given_up.set()
        return self._transfer.run if self._transfer.complete else None

    def _write_the_rest(self) -> None:
        with suppress(OSError):  # what it has begun it would else end at the lowest
            os.setpriority(os.PRIO_PROCESS, self.native_id or 0, os.getpriority(os.PRIO_PROCESS, 0))
        self.join()
        for _ in range(LAST_ATTEMPTS):
            if self._given_up.is_set() or self._advanced():
                break
            self._given_up.wait(RETRY_S[0])
        os.close(self._lock)

    def _advanced(self) -> bool:
        """Write what is new. Return whether the store took it."""
        try:
            self._transfer.advance()
        except Exception as error:  # whatever MLflow and what lies below it raise
            self.error = without_credentials(str(error))
            return False
        self.error = None
        return True


class RunUpload:
    """One run on its way from its folder to a store."""

    def __init__(self, folder: Path, uri: str, *, draw: Draw | None = None) -> None:
        self.folder, self.uri = folder, uri
        self._draw = draw
        self.run: str | None = None  # MLflow's id
        self._parent: str | None = None  # that of its study
        self.complete = False
        self._follower = events.LogFollower(folder / events.NAME)
        self._pending: list[dict[str, Any]] = []
        self._samples = 0  # that the events written so far have trained on
        self._client: TrackingClient | None = None

    def advance(self) -> None:
        """Write what the log has gained. Raises what MLflow raises, and may then be called again."""
        self._pending += self._follower.take()
        if not self._pending:
            return
        if self._client is None:
            self._client = open_client(self.uri, artifacts=self.folder.absolute().parent / ARTIFACTS)
            assert self._client is not None
        client = self._client
        if self.run is None:
            self.run = self._open(client, run_start(self._pending))
        metrics, samples = mapping.validation_metrics(self._pending, samples=self._samples)
        client.log(self.run, metrics=metrics)
        if any(event["key"] == "run_stop" for event in self._pending):
            self._close(client, self.run)
            self.complete = True
        self._samples = samples
        self._pending.clear()

    def _open(self, client: TrackingClient, start: RunStart) -> str:
        tags = mapping.start_tags(start)
        if start.experiment.study:
            root = self.folder.absolute().parent
            self._parent = parent_runs.parent(client, root, start.experiment.study)
            tags[parent_runs.PARENT] = self._parent
        run = client.open_run(start.run_id, name=mapping.run_name(start), start_time=start.begun, tags=tags)
        client.log(run, params=mapping.params(start))
        return run

    def _close(self, client: TrackingClient, run: str) -> None:
        result = reader.load(self.folder / "record.json")
        tags = mapping.end_tags(result)
        links = [f"[All runs]({ui.link('', client.experiment_id)})"]
        if self._parent:
            links.append(
                f"[Study {result.experiment.study}]({ui.link('', client.experiment_id, self._parent)})"
            )
        tags[ui.NOTE] = f"{' | '.join(links)}\n\n{tags[ui.NOTE]}"
        client.log(run, metrics=mapping.end_metrics(result, ended=result.end_time), tags=tags)
        client.log_dataset(run, result)
        with temporary_folder.folder() as temporary:
            files = temporary / "files"
            files.mkdir()
            _write_files(self.folder, result, files)
            if self._draw is not None:
                self._draw(files)
            client.close_run(run, folder=files, status=result.status, ended=result.end_time)


def _write_files(folder: Path, result: Record, files: Path) -> None:
    """Write the run's files in `folder` and the task's table to MLflow."""
    for name, text in run_files.texts(result, events.read(folder / events.NAME)).items():
        (files / name).write_text(text, "utf-8")
    clean = reader.load(files / run_files.RECORD)
    for trace in clean.profile.files if clean.profile else []:
        source = folder.resolve() / trace
        if source.is_file() and source.resolve() == source:  # a link may lead to any of the user's files
            (files / trace).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, files / trace)
    if clean.table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(clean.table), files / "table.parquet")


def lock(folder: Path) -> int:
    """Lock the run for this process until the descriptor is closed. The kernel frees it after a kill -9.

    Raises BlockingIOError while another has it. If files cannot be locked, nothing is held.
    """
    try:  # NFS locks only what is open for writing
        descriptor = os.open(folder / events.NAME, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        descriptor = os.open(folder / events.NAME, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # ENOLCK, ENOSYS: a file system without locks
        pass
    return descriptor

"""Bring runs and studies below an output_root into MLflow after the fact, each exactly once.

A run whose driver was killed gets its record here, from its log.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import mlbench
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import ResultError, UserError, comparable, first_line
from mlbench.config.store_uri import default_store
from mlbench.record import events, reader, study
from mlbench.record.attempts import results
from mlbench.record.build_record import build_record, lost_end, run_start
from mlbench.record.record import FINISHED, Record
from mlbench.record.study import Study
from mlbench.tracking import parent_runs
from mlbench.tracking.client import TrackingClient, open_client, reachable, within
from mlbench.tracking.parent_runs import Summary
from mlbench.tracking.uploader import Draw, RunUpload, lock

Answer = TypeVar("Answer")

OUTCOMES = ("uploaded", "present", "running", "failed")  # for one run
ANSWER_S = 60  # s that a store has for a question
UPLOAD_S = 300  # s that it has to take one run


@dataclass(frozen=True)
class SyncResult:
    """The outcome of one run folder."""

    run_id: str
    outcome: Literal["uploaded", "present", "running", "failed"]  # running: left to its driver
    why: str = ""


def sync_runs(
    output_root: Path, uri: str | None, *, usable: Collection[str] = (), draw: Draw | None = None
) -> Iterator[SyncResult]:
    """Bring every run below `output_root` into MLflow, one after the other, each exactly once.

    - uri: None means each run's configured store.
    - usable: runs whose records are known to be usable without reading them (run_index.entries).
    - draw: (default: no figures).

    A run with a live driver is left to it. A run with a killed driver becomes `interrupted`. A lost or
    damaged record is made again from its whole log. Damaged runs, and runs that their store refuses, do not
    affect others. Raises UserError if the store at `uri` does not answer.
    """
    complete: dict[str, set[str] | UserError] = {}
    for log in sorted(output_root.glob(f"*/{events.NAME}")):
        folder = log.parent
        try:
            opening = events.opening(log)
            if opening is None:
                continue
            run_id, own = _opened(opening)
        except (OSError, UserError) as error:
            yield SyncResult(folder.name, "failed", str(error))
            continue
        store = uri or own or default_store(output_root)
        if store not in complete:
            try:
                complete[store] = uploaded_runs(store)
            except UserError as error:
                if uri:
                    raise
                complete[store] = error
        present = complete[store]
        if isinstance(present, UserError):
            yield SyncResult(run_id, "failed", str(present))
        elif run_id in present and (folder.name in usable or reader.is_readable(folder)):
            yield SyncResult(run_id, "present")
        else:
            yield upload(folder, run_id, store, draw=draw)


def _opened(opening: Any) -> tuple[str, str | None]:
    """Return a run's id and store from its log's first event. Raises UserError if that is damaged."""
    try:
        run_id, own = opening["run_id"], opening["experiment"]["tracking_uri"]
    except (LookupError, TypeError):
        run_id = own = None
    if not isinstance(run_id, str) or not isinstance(own, str | None):
        raise ResultError("its event log is damaged: it does not begin with the run's configuration")
    return run_id, own


def uploaded_runs(uri: str) -> set[str]:
    """Return the ids of the runs that a store has in full, or had until a person deleted them there."""
    with reachable(uri):
        client = within(ANSWER_S, partial(open_client, uri, artifacts=None))
        return client.complete(page_s=ANSWER_S) if client else set()


def ask(uri: str, question: Callable[[TrackingClient], Answer], *, absent: Answer) -> Answer:
    """Return what a store answers, or `absent` if it has no runs of mlbench.

    Raises UserError if it is down.
    """

    def answer() -> Answer:
        client = open_client(uri, artifacts=None)
        return question(client) if client else absent

    with reachable(uri):
        return within(ANSWER_S, answer)


def location(uri: str, run_id: str = "", *, upload: str) -> tuple[str, str]:
    """Return the ids that the store at `uri` has for mlbench's experiment and for a run ("" for no run).

    Raises UserError with the command line of `upload` if it has none.
    """

    def ids(client: TrackingClient) -> tuple[str, str]:
        run = client.find(run_id) if run_id else None
        return client.experiment_id, run.info.run_id if run else ""

    experiment, run = ask(uri, ids, absent=("", ""))
    where = without_credentials(uri)
    if not experiment or run_id and not run:
        hint = f"{upload} uploads the finished runs"
        raise ResultError(f"the MLflow store {where} has no {run_id or 'runs of mlbench'}", hint=hint)
    return experiment, run


def upload(folder: Path, run_id: str, uri: str, *, draw: Draw | None = None) -> SyncResult:
    """Bring one run into MLflow, unless its driver still lives."""
    try:
        descriptor = lock(folder)
    except BlockingIOError:
        return SyncResult(run_id, "running")
    except OSError as error:
        return SyncResult(run_id, "failed", str(error))
    try:
        keys = {event["key"] for event in events.read(folder / events.NAME)}
        lost = "run_stop" in keys and not reader.is_readable(folder)
        present = lost and run_id in uploaded_runs(uri)
        if "run_stop" not in keys or lost and (not present or "run_result" in keys):
            recover(folder)
        if present:
            return SyncResult(run_id, "present")  # with a record of the same log
        within(UPLOAD_S, RunUpload(folder, uri, draw=draw).advance)
    except Exception as error:  # one bad folder must not keep the others out
        return SyncResult(run_id, "failed", without_credentials(first_line(error)))
    finally:
        os.close(descriptor)
    return SyncResult(run_id, "uploaded")


def sync_studies(
    output_root: Path, uri: str | None, *, summarize: Callable[[Study, Sequence[Record], Path], Summary]
) -> Iterator[tuple[str, str]]:
    """Write the parents of all studies below `output_root` that have runs. Yield name and "", or why not.

    - uri: None means the store of each study's runs.
    - summarize: returns what MLflow shows of a study and its runs (report.mlflow_study.summary).

    Call it after the runs themselves were brought there.
    """
    for path in sorted(output_root.glob(f"studies/*/{study.PLAN}")):
        name = path.parent.name
        try:
            plan = study.load(path.parent)
            records = study.records(plan, output_root) if plan else []
            if plan and records:
                store = uri or records[0].experiment.tracking_uri or default_store(output_root)
                summary = summarize(plan, records, output_root)
                write = partial(parent_runs.write, plan, records, summary, output_root=output_root)
                done = {(run.key, run.seed) for run in results(records) if run.status in FINISHED}
                planned = {(trial.point.key, trial.seed) for trial in study.trials(plan)}
                status = "FINISHED" if planned <= done else "FAILED"  # the words of the sweep
                with reachable(store):
                    within(ANSWER_S, partial(open_client, store, artifacts=None))
                within(UPLOAD_S, partial(write, uri=store, status=status))
                yield plan.name, ""
        except Exception as error:  # whatever MLflow raises, as one bad study must not keep the others out
            yield name, without_credentials(first_line(error))


def recover(folder: Path) -> Record:
    """Build a run's record from its log, and complete its folder: record, then `run_stop`.

    A record that can be used is kept. A run without `run_result` in its log ended with the log's last event.
    It is `interrupted`, unless its workers had finished or reached the goal. Raises UserError if this version
    cannot read the log.
    """
    log = events.read(folder / events.NAME)
    stops = [event["value"]["status"] for event in log if event["key"] == "run_stop"]
    try:
        result = reader.load(folder / "record.json")
    except (FileNotFoundError, UserError) as error:
        versions = comparable(run_start(log).mlbench), comparable(mlbench.__version__)
        if isinstance(error, UserError) and len(set(versions)) > 1:
            raise  # another version's record is no damaged one
        result = _rebuilt(folder, log, stopped=bool(stops))
        result.save(folder)
    if stops[-1:] != [result.status]:
        events.append(folder / events.NAME, "run_stop", {"status": result.status}, kind="INTERVAL_END")
    return result


def _rebuilt(folder: Path, log: list[dict[str, Any]], *, stopped: bool) -> Record:
    if not any(event["key"] == "run_result" for event in log):
        error = "its record was lost" if stopped else "the command that ran this was killed"
        end = lost_end(log, error)
        events.append(folder / events.NAME, "run_result", end.model_dump(mode="json"))
        log = events.read(folder / events.NAME)
    try:
        return build_record(log)
    except UserError as error:
        raise ResultError(f"{folder}: {error.message}", hint=error.hint) from error

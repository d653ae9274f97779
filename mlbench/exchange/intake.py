"""From zip files to records with their event logs: exports of ours, and what MLBench published."""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mlbench.exchange import archive, published
from mlbench.exchange.archive import Archive
from mlbench.exchange.export import OF_EXPORT
from mlbench.exchange.layout import is_layout
from mlbench.experiment import config, events
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record
from mlbench.tasks import registry
from mlbench.tracking import mapping

Log = list[dict[str, Any]]
RECORD = "record.json"
OF_BOTH = ("run_id", "experiment", "seed", "key", "command")  # of the record and of the log's first event
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # a folder's name, never a path


def zips(places: Sequence[str]) -> list[Path]:
    """Return the zip files that the words name: files, and folders with all zips below them, in order."""
    found: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            below = sorted(path for path in place.rglob("*.zip") if path.is_file())
            if not below:
                raise UserError(f"no zip file below {place}")
            found += below
        elif place.is_file():
            found.append(place)
        else:
            raise UserError(f"there is no file or folder {place}")
    return list(dict.fromkeys(found))


def read(paths: Sequence[Path], given: dict[str, str]) -> Iterator[tuple[Path, Record | UserError, Log]]:
    """Yield the record and event log of each zip file, or the error that says why it is none.

    `given`: task, backend and hardware of published results whose paths do not tell them.
    """
    names: dict[str, list[str]] = {}  # by SHA-256: published archives are copied under several names
    for path in paths:
        try:
            names.setdefault(archive.read(path).sha256, []).append(path.name)
        except UserError:
            continue  # told below
    for path in paths:
        try:
            opened = archive.read(path)
            if RECORD in opened.files:
                yield path, *_ours(opened)
            else:
                copies = [name for name in names[opened.sha256] if name != path.name]
                record = published.convert(opened, published.origin(path, given), copies=copies)
                yield path, record, _log(record, opened)
        except UserError as error:
            yield path, error, []


def _ours(opened: Archive) -> tuple[Record, Log]:
    """Return what an export of ours holds, marked as imported, so that it is not reused as a run of here."""
    unknown = [name for name in opened.files if name not in OF_EXPORT and not is_layout(name)]
    if unknown:
        raise opened.refusal(f"{unknown[0]!r} is no file of an export")
    opened.json(RECORD)  # says in a sentence what is not JSON, and refuses NaN
    try:
        record = Record.model_validate_json(opened.files[RECORD])
    except ValidationError as error:
        raise _changed(opened, ".".join(map(str, error.errors()[0]["loc"]))) from error
    if not RUN_ID.fullmatch(record.run_id):
        raise opened.refusal(f"{record.run_id[:80]!r} is no name of a run")
    _check_experiment(opened, record)
    log = _own_log(opened, record)
    marked = {"imported": _origin(opened)}
    # Where the run was recorded is not where its copy is: nothing is sent to, or deleted from, that store.
    here = {"experiment": record.experiment | {"tracking_uri": None}}
    log[0] = log[0] | {"value": log[0]["value"] | marked | here}
    return record.model_copy(update={"software": record.software | marked} | here), log


def _check_experiment(opened: Archive, record: Record) -> None:
    """Refuse an experiment that is none: a record keeps it as plain values, which every reader relies on."""
    plain = record.experiment
    task = plain.get("task")
    name = task.get("name") if isinstance(task, dict) else None
    if not isinstance(task, dict) or name not in config.choices("task"):
        raise opened.refusal(f"{RECORD} is of a task that is not known here ({str(name)[:40]})")
    common = {field: value for field, value in task.items() if field in config.TaskConfig.model_fields}
    parts = (("task.", registry.load(name).Config, task), ("", config.Experiment, plain | {"task": common}))
    for prefix, model, values in parts:
        try:
            model.model_validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            for fault in error.errors():
                where = prefix + ".".join(map(str, fault["loc"]))
                told = record.source != published.SOURCE or where not in published.UNLIKE_OURS
                if told or fault["input"] != published.UNLIKE_OURS[where]:
                    raise _changed(opened, f"experiment.{where}") from error


def _own_log(opened: Archive, record: Record) -> Log:
    """Return the event log; UserError where it is not the record's, or MLflow cannot be written from it."""
    log: Log = []
    for line in opened.text(events.NAME).splitlines() if events.NAME in opened.files else ():
        try:
            event = json.loads(line)
            assert isinstance(event["key"], str) and isinstance(event["metadata"], dict)
        except (ValueError, RecursionError, LookupError, TypeError, AssertionError) as error:
            raise opened.refusal(f"{events.NAME} holds a line that is no event") from error
        log.append(event)
    keys = [event["key"] for event in log]
    if keys[:1] != ["run_configuration"] or "run_stop" not in keys:
        raise opened.refusal(f"{events.NAME} is missing, or not the whole log of a run")
    start = log[0]["value"]
    if not isinstance(start, dict) or any(start.get(name) != getattr(record, name) for name in OF_BOTH):
        raise opened.refusal(f"{RECORD} and {events.NAME} are of different runs")
    try:
        mapping.opening_tags(start)
        mapping.params(start)
        mapping.series(log)
        mapping.closing_metrics(record, ended=datetime.fromisoformat(record.ended_at).timestamp())
        datetime.fromtimestamp(start["begun"])
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError) as error:
        raise opened.refusal(f"{events.NAME} or {RECORD} was changed ({str(error)[:60]})") from error
    return log


def _changed(opened: Archive, where: str) -> UserError:
    return opened.refusal(f"{RECORD} is of another version of mlbench, or changed ({where})")


def _log(record: Record, opened: Archive) -> Log:
    """Return the event log that a published run would have left, for MLflow."""
    begun = datetime.fromisoformat(record.started_at).timestamp()
    ended = datetime.fromisoformat(record.ended_at).timestamp()
    start = {name: getattr(record, name) for name in ("command", "experiment", "seed", "key", "run_id")}
    start |= {"begun": begun, "deviations": [], "warnings": [], "software": record.software}
    start |= {"source": record.source, "imported": _origin(opened)}
    log = [_event("run_configuration", start, wall=begun)]
    for validation in record.validations:
        metadata = {"started_at": begun, "segments": []}
        log.append(_event("validation", validation, wall=validation["wall"], metadata=metadata))
    return [*log, _event("run_stop", {"status": record.status}, wall=ended, kind="INTERVAL_END")]


def _event(
    key: str, value: Any, *, wall: float, kind: str = "POINT_IN_TIME", metadata: dict[str, Any] | None = None
) -> dict[str, Any]:
    stamp = round(wall * 1000)
    return {"time_ms": stamp, "event_type": kind, "key": key, "value": value, "metadata": metadata or {}}


def _origin(opened: Archive) -> dict[str, str]:
    return {"file": opened.path.name, "sha256": opened.sha256}

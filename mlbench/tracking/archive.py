"""Pack one run as a zip file, and read it back.

It holds the files of run_files.py, provenance.json, and mllog.txt with lines of MLPerf's log (mllog.py).

Nothing in an archive holds a password, and equal runs make equal archives, bit by bit. An archive from
elsewhere is read without trust. Only a fixed list of names is read into memory, up to limits of bytes, values
and events. Nothing is unpacked to disk or unpickled.
"""

import hashlib
import json
import lzma
import math
import os
import shlex
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mlbench.config import compose, plugins
from mlbench.config.errors import ResultError, UserError, unreadable
from mlbench.config.identity import flatten, role
from mlbench.record import events, reader, run_folders
from mlbench.record.build_record import build_record, run_start, verify_against_log
from mlbench.record.record import Record
from mlbench.tracking import mapping, run_files
from mlbench.tracking.run_files import CONFIG, RECORD, RESULTS

Log = list[dict[str, Any]]
FILES = (RECORD, events.NAME, CONFIG, "provenance.json", "mllog.txt", *RESULTS)
MAX_BYTES = 64 * 2**20  # of the zip file, and of all files in it (a run of 1,024 workers has about 15 MiB)
MAX_EVENTS = 5_000  # lines of the event log, one for each validation
MAX_VALUES = 2_000_000  # of JSON, in one file (event logs have 50 to 60 a KiB: six runs, 2026-11-23)
DATE = (1980, 1, 1, 0, 0, 0)  # of every entry: the first day of the zip format, so that equal runs are equal
PROVENANCE = (
    "command", "mlbench", "source", "key", "seed", "deviations", "caveats", "warnings", "nodes", "software",
    "data_hash", "ray",
)  # fmt: skip
TIMES = {"validations", "table"}  # fields of a record whose numbers no other run has
RUN, MEASURE = ["python", "-m", "mlbench.run"], ["python", "-m", "mlbench.measure"]


def export(folder: Path, target: Path, *, mllog: Callable[[Record, Log], str]) -> Path:
    """Write a run's folder to the zip file `target`.

    `mllog` returns the run as MLPerf's log (report.mllog.text). Raises UserError if `target` exists or cannot
    be written, or if the run has no log.
    """
    result = reader.load(folder / RECORD)
    if not (folder / events.NAME).is_file():
        sentence = f"run {result.run_id} has no {events.NAME}, which a check needs"
        raise ResultError(sentence, hint="measure it again")
    files = run_files.texts(result, events.read(folder / events.NAME))
    result = Record.model_validate_json(files[RECORD])
    log = [json.loads(line) for line in files[events.NAME].splitlines()]
    plain = result.model_dump(mode="json", include=set(PROVENANCE))
    files["provenance.json"] = json.dumps(plain, indent=2, allow_nan=False)
    files["mllog.txt"] = mllog(result, log)
    unfinished = target.with_name(f".{target.name}.part")
    try:
        if target.exists():
            raise ResultError(f"{target} exists already", hint="give another name with to=")
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as opened:
            for name, text in sorted(files.items()):
                opened.writestr(zipfile.ZipInfo(name, DATE), text.encode(), zipfile.ZIP_DEFLATED)
        os.replace(unfinished, target)
    except OSError as error:
        raise ResultError(
            f"cannot write {target}: {error.strerror}", hint="give another place: to="
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def paths(arguments: Sequence[str]) -> list[Path]:
    """Return the zip files that the arguments name: files, and folders with all zips below them, in order."""
    archives: list[Path] = []
    for source in map(Path, arguments):
        if source.is_dir():
            below = sorted(path for path in source.rglob("*.zip") if path.is_file())
            if not below:
                raise ResultError(f"no zip file below {source}")
            archives += below
        elif source.is_file():
            archives.append(source)
        else:
            raise ResultError(f"{source} does not exist")
    return list(dict.fromkeys(archives))


def load(zips: Sequence[Path]) -> Iterator[tuple[Path, Record | UserError, Log]]:
    """Yield record and event log of each archive, marked as imported, or the reason why it is refused."""
    for path in zips:
        try:
            yield path, *_run(path)
        except UserError as error:
            yield path, UserError(f"{path.name} is not imported: {error}"), []


def times(record: Mapping[str, Any]) -> frozenset[float]:
    """Return when a record's validations ended, s. Without validations, return the numbers of its table."""
    rows = (value for row in record["table"] for value in row.values() if isinstance(value, float))
    return frozenset(float(validation["elapsed"]) for validation in record["validations"]) or frozenset(rows)


def elapsed(zips: Sequence[Path]) -> Iterator[tuple[str, frozenset[float]]]:
    """Yield the run's name and its `times` for each archive, from its record.

    The record is not checked against the log. An archive that cannot be read is left out.
    """
    for path in zips:
        try:
            plain = _json(RECORD, _files(path)[0][RECORD])
            yield str(plain["run_id"]), times(plain)
        except (UserError, LookupError, TypeError, ValueError, AttributeError):
            continue


def _run(path: Path) -> tuple[Record, Log]:
    files, sha256 = _files(path)
    for name in (RECORD, events.NAME):
        if name not in files:
            raise ResultError(f"{name} is missing: it is not an mlbench export")
    plain = _json(RECORD, files[RECORD])
    try:
        result = Record.model_validate(plain)
    except ValidationError as error:
        raise _changed(".".join(map(str, error.errors()[0]["loc"])), plain) from error
    if not run_folders.RUN_ID.fullmatch(result.run_id) or not result.run_id.endswith(f"-{result.seed:x}"):
        raise ResultError(f"{result.run_id[:80]!r} is not a run name")
    _check_experiment(result)
    whole = _log(files[events.NAME], result)
    log = list(whole)
    start = log[0]["value"] | {"imported": {"file": path.name, "sha256": sha256}}
    # The run was recorded elsewhere than its copy: nothing is sent to, or deleted from, that store.
    start["experiment"] = start["experiment"] | {"tracking_uri": None}
    start["command"] = _command(start["command"], result)
    log[0] = log[0] | {"value": start}
    for number, event in enumerate(log):
        if event["key"] == "submission":
            value = event["value"] | {"command": _command(event["value"]["command"], result)}
            log[number] = event | {"value": value}
    log = events.resealed(whole, log)
    return build_record(log), log


def _command(command: str, result: Record) -> str:
    """Return the command as people may paste it: the words of mlbench's that the configuration bears out.

    Addresses, folders and the command of a measured script are left out: they are those of another machine.
    """
    try:
        arguments = shlex.split(command)
    except ValueError:
        arguments = []
    program = MEASURE if result.experiment.launcher == "command" else RUN
    if program is MEASURE:  # a script with mlbench.measure() in it has a separate line
        own = takewhile(lambda word: word != "--", arguments)
        arguments = [*own] if arguments[:3] == MEASURE else MEASURE
    if arguments[:3] != program:
        raise ResultError(f"its command is not {shlex.join(RUN)}")
    plain: dict[str, Any] = result.experiment.plain() | {"seed": result.seed}
    values = flatten(plain) | {group: plain[group]["name"] for group in plugins.GROUPS if group in plain}
    return shlex.join([*program, *_words(arguments[3:], values)])


def _words(arguments: Sequence[str], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words that name a value of the configuration, but no place, each with that value."""
    for word in arguments:
        name, equals, text = word.partition("=")
        if not equals or name not in values or role(name) == "location":
            continue
        value = values[name]
        try:
            same = text == value or json.loads(text) == value
        except (ValueError, RecursionError):
            same = False
        yield word if same else f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def _files(path: Path) -> tuple[dict[str, str], str]:
    """Return the texts in a zip file by name, and the SHA-256 of the zip."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ResultError(f"it is larger than {MAX_BYTES // 2**20} MiB")
        with path.open("rb") as source, zipfile.ZipFile(source) as opened:
            entries = opened.infolist()
            for entry in entries:
                if entry.filename not in FILES:
                    raise ResultError(f"{entry.filename[:80]!r} is not a file of an export")
                if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
                    raise ResultError(f"{entry.filename!r} is a link or another special file")
            if len(entries) > len({entry.filename for entry in entries}):
                raise ResultError("it has a file twice")
            if min((entry.header_offset for entry in entries), default=0):  # which some readers take
                raise ResultError("it has data before its first file")
            texts, left = dict[str, str](), MAX_BYTES
            for entry in entries:
                with opened.open(entry) as stream:
                    content = stream.read(left + 1)
                left -= len(content)
                if left < 0:
                    raise ResultError(f"it unpacks to more than {MAX_BYTES // 2**20} MiB")
                if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
                    raise ResultError(f"{entry.filename} has more than {MAX_VALUES:,} values")
                texts[entry.filename] = content.decode()
            source.seek(0)
            return texts, hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise ResultError(error.strerror or str(error)) from error
    # what zipfile raises on damaged headers, encryption and unknown methods
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, RuntimeError) as error:
        why = str(error)[:60] or "it ends early"
        raise ResultError(f"it is damaged or not a zip file ({why})") from error


def _json(name: str, text: str) -> Any:
    """Return JSON types in which no text holds control characters, which a terminal would obey."""
    try:
        values = json.loads(text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=_once)
        return events.visible(values)
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{name} is not valid JSON ({str(error)[:60]})") from error


def _finite(word: str) -> float:
    if not math.isfinite(float(word)):
        raise ValueError(f"{word[:20]} is not a number")
    return float(word)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):  # readers of JSON take the first or the last
        raise ValueError("a name is repeated in one object")
    return values


def _check_experiment(result: Record) -> None:
    """Refuse an unknown task, and fields that its configuration rejects."""
    task, values = result.experiment.task, {"mlbench": result.mlbench}
    if task.name not in compose.choices("task"):
        raise ResultError(f"{RECORD} has an unknown task ({task.name[:40]})")
    config = plugins.load("task", task.name).Config
    for strict in (False, True):
        try:
            config.model_validate_json(task.model_dump_json(), strict=strict)
        except ValidationError as error:
            # Behind a validator of all fields no list of JSON is a tuple to strict pydantic (its issue 9204).
            faults = [fault for fault in error.errors() if not (strict and fault["type"] == "tuple_type")]
            if faults:
                field = f"experiment.task.{'.'.join(map(str, faults[0]['loc']))}"
                raise _changed(field, values) from error
        except (LookupError, TypeError, OSError) as error:  # of such a validator
            raise _changed("experiment.task", values) from error


def _log(text: str, result: Record) -> Log:
    """Return the event log. Raises UserError if it is not the record's, or unusable for MLflow."""
    lines = text.splitlines()
    if len(lines) > MAX_EVENTS:
        raise ResultError(f"{events.NAME} has more than {MAX_EVENTS:,} events")
    log: Log = [_json(events.NAME, line) for line in lines]
    if not all(isinstance(event, dict) and {"key", "value", "metadata"} <= event.keys() for event in log):
        raise ResultError(f"{events.NAME} has a line that is not an event")
    try:
        keys = [event["key"] for event in log]
        if keys[:1] != ["run_configuration"] or "run_stop" not in keys:
            raise ResultError(f"{events.NAME} is not the complete log of a run")
        verify_against_log(result, log)
        start = run_start(log)
        mapping.start_tags(start)
        mapping.params(start)
        mapping.validation_metrics(log)
        mapping.end_metrics(result, ended=result.end_time)
        datetime.fromtimestamp(start.begun)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError) as error:
        raise ResultError(f"{events.NAME} or {RECORD} was changed ({str(error)[:60]})") from error
    return log


def _changed(field: str, values: Any) -> UserError:
    return unreadable(RECORD, values, damage=f"was changed ({field})", hint="")

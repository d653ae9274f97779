"""Index the fields that `results list` shows and selects by, in one file, so that records stay closed.

The file (`.index.sqlite` in output_root) is derived, and deleting it costs seconds. A row counts only while
the run's record is the file it was made from (inode, size, times of change). If the record calls itself
eligible, the same holds for the event log against which it is checked. The whole file counts only while its
checksum holds, its location is unchanged, and mlbench's sources are those that wrote it. Everything else is
read from the records, as if there were no file.
"""

import gc
import json
import os
import secrets
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from mlbench import clock
from mlbench.analysis import select
from mlbench.config.errors import UserError
from mlbench.record import events, fields, provenance, run_folders
from mlbench.record.reader import EDITED
from mlbench.record.record import Record

NAME = ".index.sqlite"
FEW = 100  # records; reading so many again costs less than writing a large index
SETTLED_NS = 2 * 10**9  # ns; a file that was just changed may change again and keep its time (FAT: 2 s)
SELECTED = ("run", "status", "source", "seed", "key", "eligible")  # fields in which runs of one point differ
SHOWN = [field for field in fields.FIELDS if field.heading and not field.setting]
SHARED = [field for field in fields.FIELDS if field.heading and field.setting]
# A list of values is half as long as one with their names.
OWN = tuple(dict.fromkeys([*SELECTED, *(field.name for field in SHOWN), "cost_elsewhere", "contradictions"]))
SCHEMA = """
CREATE TABLE file (sources TEXT, folder TEXT, checksum INTEGER);
CREATE TABLE point (number INTEGER, shared TEXT);
CREATE TABLE run (name TEXT, state TEXT, point INTEGER, own TEXT);
"""


class IndexEntry(NamedTuple):
    """One run: what a listing shows of it (`row`), and the fields that it is selected by.

    - state: of the record and, if it calls itself eligible, the event log, as text. Empty if a change may go
      unseen.
    """

    state: str
    own: Sequence[Any]  # the values of OWN
    shared: Mapping[str, Mapping[str, Any]]  # equal ones are one object, in memory and in the file

    @property
    def row(self) -> dict[str, Any]:
        return {**self.shared["row"], **dict(zip(OWN, self.own, strict=True))}

    @property
    def fields(self) -> dict[str, Any]:
        return {**self.shared["fields"], **dict(zip(SELECTED, self.own, strict=False))}


def own_values(record: Record) -> dict[str, Any]:
    """Return what the runs of one point differ in, as JSON types in the order of OWN, with times in s."""
    values = fields.flat(record, SHOWN) | {"cost_elsewhere": record.is_cost_elsewhere, "key": record.key}
    return {name: values[name] if name in values else getattr(record, name) for name in OWN}


def shared_values(record: Record) -> dict[str, Any]:
    """Return the values of a run's configuration that a listing shows, and its units."""
    samples, metric, goal = fields.units(record)
    target = [goal.metric, goal.target, goal.direction] if goal else None
    return fields.flat(record, SHARED) | {"sample_unit": samples, "metric_unit": metric, "target": target}


def entries(output_root: Path) -> tuple[dict[str, IndexEntry], list[str]]:
    """Return all runs by name, oldest first, and a sentence for every folder whose record cannot be used."""
    index = _read(output_root / NAME)
    shared: dict[str, Mapping[str, Any]] = {}
    current, complaints, fresh = {}, [], 0
    for name in sorted(os.listdir(output_root)) if output_root.is_dir() else ():
        try:
            state = _stat(f"{output_root}/{name}/record.json")
        except (FileNotFoundError, NotADirectoryError):
            continue
        entry = index.get(name)
        if entry is None or entry.state != state:
            with_log = f"{state} {_log(output_root / name)}"
            if entry is None or entry.state != with_log:
                try:
                    entry = _entry(output_root / name, state, with_log, shared)
                except FileNotFoundError:
                    continue  # deleted since
                except UserError as error:
                    complaints.append(str(error))
                    continue
                fresh += bool(entry.state)
        current[name] = entry
    if fresh > FEW:
        with suppress(OSError, sqlite3.Error):  # a read-only folder is listed all the same
            _write(output_root / NAME, current)
    return current, complaints


def _entry(folder: Path, state: str, with_log: str, shared: dict[str, Mapping[str, Any]]) -> IndexEntry:
    """Read a record. Raises UserError if it cannot be used.

    `state` and `with_log` are the record's, and the record's and the event log's, from before.
    """
    now_ns = round(clock.system() * 1e9)
    record = run_folders.load(folder)
    selectable = {name: value for name, value in select.fields(record).items() if name not in SELECTED}
    both = {"row": shared_values(record), "fields": selectable}
    both = shared.setdefault(json.dumps(both), both)
    if record.eligible or any(reason.startswith(EDITED) for reason in record.official_reasons):
        state = with_log
    settled = now_ns - max(map(int, state.split()[2::4])) > SETTLED_NS
    return IndexEntry(state if settled else "", list(own_values(record).values()), both)


def _log(folder: Path) -> str:
    """Return the state of a run's event log, "-" without one."""
    try:
        return _stat(f"{folder}/{events.NAME}")
    except FileNotFoundError:
        return "-"


def _stat(path: str) -> str:
    """Return the values that change with a file."""
    status = os.stat(path)
    return f"{status.st_ino} {status.st_size} {status.st_ctime_ns} {status.st_mtime_ns}"


def _read(path: Path) -> dict[str, IndexEntry]:
    """Return the index, or an empty one if there is no trusted one."""
    try:  # the file is replaced, never changed, so it needs no lock
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as index:
            files, points, runs = (
                index.execute(f"SELECT * FROM {table}").fetchall() for table in ("file", "point", "run")
            )
    except sqlite3.Error:
        return {}
    if files != [_file(path, points, runs)]:
        return {}
    gc.disable()  # the rows hold no cycle, and looking for one among so many takes longer than making them
    try:
        shared = {number: json.loads(text) for number, text in points}
        own = json.loads(f"[{','.join(text for *_, text in runs)}]")  # at once: a call for each takes longer
        return {
            name: IndexEntry(state, values, shared[point])
            for (name, state, point, _), values in zip(runs, own, strict=True)
        }
    finally:
        gc.enable()


def _write(path: Path, current: Mapping[str, IndexEntry]) -> None:
    """Write the index atomically: a reader finds the old one or the new one, never a part."""
    indexed = {name: entry for name, entry in current.items() if entry.state}
    objects = {id(entry.shared): json.dumps(entry.shared) for entry in indexed.values()}
    numbers = {text: number for number, text in enumerate(dict.fromkeys(objects.values()))}
    points = [(number, text) for text, number in numbers.items()]
    runs = [
        (name, entry.state, numbers[objects[id(entry.shared)]], json.dumps(entry.own))
        for name, entry in indexed.items()
    ]
    part = path.with_name(f"{NAME}.{secrets.token_hex(8)}")  # two commands may write at once
    try:
        with closing(sqlite3.connect(part)) as index:
            index.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {SCHEMA}")
            with index:
                index.execute("INSERT INTO file VALUES (?, ?, ?)", _file(path, points, runs))
                index.executemany("INSERT INTO point VALUES (?, ?)", points)
                index.executemany("INSERT INTO run VALUES (?, ?, ?, ?)", runs)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _file(path: Path, points: list[Any], runs: list[Any]) -> tuple[str, str, int]:
    """Return what makes the index valid: the sources that wrote it, its location, and its checksum."""
    checksum = zlib.crc32("\n".join(map(str, chain.from_iterable([*points, *runs]))).encode())
    return provenance.sources(), os.path.realpath(path.parent), checksum

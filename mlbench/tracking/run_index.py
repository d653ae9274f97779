"""What `results list` shows of every run and selects it by, kept in one file so that records stay closed.

The file (`.index.json` in output_root) is derived: whoever deletes it loses seconds. A row counts only while
the run's record is the file it was made from (inode, size, times of change), and where the record calls
itself eligible the event log, too, against which it is checked. The whole file counts only while its checksum
holds, it lies where it was written, and mlbench's sources are those that wrote it. Everything else is read
from the records, as if there were no file.
"""

import gc
import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mlbench import clock
from mlbench.analysis import select
from mlbench.config.errors import UserError
from mlbench.record import events, provenance, run_folders
from mlbench.record.reader import EDITED
from mlbench.terminal import run_table
from mlbench.terminal.run_table import COLUMNS, Row
from mlbench.tracking.run_files import RECORD

NAME = ".index.json"
FEW = 100  # records; reading so many again costs less than writing a large index
SETTLED_NS = 2 * 10**9  # ns; a file that was just changed may change again and keep its time (FAT: 2 s)
OWN = ("run", "status", "source", "seed")  # columns, and fields in which the runs of one point differ
PLACES = [[column.name for column in COLUMNS].index(name) for name in OWN]


class Entry(NamedTuple):
    """One run: its line in the table, and the fields that it is selected by.

    - state: of the record and, if it calls itself eligible, the event log, as text; empty where a change may
      go unseen.
    """

    state: str
    row: Row
    key: str
    eligible: bool
    shared: Mapping[str, Any]  # the other fields

    @property
    def fields(self) -> dict[str, Any]:
        own = {name: self.row.values[place] for name, place in zip(OWN, PLACES, strict=True)}
        return {**self.shared, **own, "key": self.key, "eligible": self.eligible}


def entries(output_root: Path) -> tuple[dict[str, Entry], list[str]]:
    """Return all runs by name, oldest first, and a sentence for every folder whose record cannot be used."""
    index = _read(output_root / NAME)
    shared: dict[str, Mapping[str, Any]] = {}  # equal fields are one object, in memory and in the file
    current, complaints, fresh = {}, [], 0
    for name in sorted(os.listdir(output_root)) if output_root.is_dir() else ():
        try:
            state = _stat(f"{output_root}/{name}/{RECORD}")
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
        with suppress(OSError):  # a folder that nobody may write to is listed all the same
            _write(output_root / NAME, current)
    return current, complaints


def _entry(folder: Path, state: str, with_log: str, shared: dict[str, Mapping[str, Any]]) -> Entry:
    """Read a record; UserError where it cannot be used.

    `state` and `with_log` are the record's, and the record's and the event log's, from before.
    """
    now_ns = round(clock.system() * 1e9)
    one = run_folders.load(folder)
    fields = {
        name: value for name, value in select.fields(one).items() if name not in (*OWN, "key", "eligible")
    }
    fields = shared.setdefault(json.dumps(fields), fields)
    if one.eligible or any(reason.startswith(EDITED) for reason in one.official_reasons):
        state = with_log
    settled = now_ns - max(map(int, state.split()[2::4])) > SETTLED_NS
    return Entry(state if settled else "", run_table.row(one), one.key, one.eligible, fields)


def _log(folder: Path) -> str:
    """Return the state of a run's event log; "-" without one."""
    try:
        return _stat(f"{folder}/{events.NAME}")
    except FileNotFoundError:
        return "-"


def _stat(path: str) -> str:
    """Return what changes with a file."""
    status = os.stat(path)
    return f"{status.st_ino} {status.st_size} {status.st_ctime_ns} {status.st_mtime_ns}"


def _read(path: Path) -> dict[str, Entry]:
    """Return the index; an empty one where there is none, or none to be trusted."""
    try:
        header, body = path.read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return {}
    if header != _header(body, path):
        return {}
    gc.disable()  # the rows hold no cycle, and looking for one among so many takes longer than making them
    try:
        return _parsed(body)
    finally:
        gc.enable()


def _parsed(body: bytes) -> dict[str, Entry]:
    stored = json.loads(body)
    values = [_unpacked(column) for column in stored["values"]]
    own_texts = (text and _unpacked(text) for text in stored["texts"])
    texts = [text or same for text, same in zip(own_texts, values, strict=True)]
    rows = map(Row, zip(*values, strict=True), zip(*texts, strict=True), _unpacked(stored["units"]))
    more = (_unpacked(stored[name]) for name in ("keys", "eligible", "shared"))
    return dict(zip(values[0], map(Entry, stored["states"], rows, *more), strict=True))


def _write(path: Path, current: Mapping[str, Entry]) -> None:
    """Write the index, column by column; a reader finds the old one or the new one, never a part."""
    runs = [entry for entry in current.values() if entry.state]
    objects = {id(entry.shared): entry.shared for entry in runs}
    fields = {place: json.dumps(values) for place, values in objects.items()}
    numbers = {text: number for number, text in enumerate(dict.fromkeys(fields.values()))}
    values = list(zip(*(entry.row.values for entry in runs), strict=True))
    texts = list(zip(*(entry.row.texts for entry in runs), strict=True))
    stored = {
        "states": [entry.state for entry in runs],
        "values": [_packed(column) for column in values],
        "texts": [None if own == same else _packed(own) for own, same in zip(texts, values, strict=True)],
        "units": _packed([entry.row.unit for entry in runs]),
        "keys": _packed([entry.key for entry in runs]),
        "eligible": _packed([entry.eligible for entry in runs]),
        "shared": {
            "levels": [json.loads(text) for text in numbers],
            "places": [numbers[fields[id(entry.shared)]] for entry in runs],
        },
    }
    body = json.dumps(stored, separators=(",", ":")).encode()
    part = path.with_name(f"{NAME}.{secrets.token_hex(8)}")  # two commands may write at once
    try:
        part.write_bytes(_header(body, path) + b"\n" + body)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _packed(column: Sequence[Any]) -> Any:
    """Return a column as its different values and the place of each run's among them, where these are few."""
    levels = {repr(value): value for value in column}  # 1 is not 1.0
    if len(levels) > len(column) / 4:
        return column
    places = {text: place for place, text in enumerate(levels)}
    return {"levels": list(levels.values()), "places": [places[repr(value)] for value in column]}


def _unpacked(column: Any) -> list[Any]:
    if isinstance(column, dict):
        return list(map(column["levels"].__getitem__, column["places"]))
    return column


def _header(body: bytes, path: Path) -> bytes:
    """Return what makes the body valid: the sources that wrote it, where it is, and its own checksum."""
    place = hashlib.sha256(os.fsencode(os.path.realpath(path.parent))).hexdigest()
    return f"{provenance.sources()} {place} {hashlib.sha256(body).hexdigest()}".encode()

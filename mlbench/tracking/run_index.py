"""What `results list` shows of every run and selects it by, kept in one file so that records stay closed.

The file (`.index.json` in output_root) is derived: whoever deletes it loses seconds. A row counts only while
the run's record and event log are the files it was made from (inode, size, times of change), and the whole
file only while its checksum holds and mlbench's sources are those that wrote it. Everything else is read from
the records, as if there were no file.
"""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mlbench.analysis import select
from mlbench.experiment import events, provenance, record
from mlbench.experiment.errors import UserError
from mlbench.terminal import run_table
from mlbench.terminal.run_table import Row
from mlbench.tracking.run_files import RECORD

NAME = ".index.json"
FEW = 100  # records; reading so many again costs less than writing a large index
SETTLED_NS = 2 * 10**9  # ns; a file that was just changed may change again and keep its time (FAT: 2 s)
OWN = ("run", "status", "source", "key", "seed", "official")  # fields in which runs of one point differ

State = list[int]  # of record and event log; empty where a change may go unseen


class Entry(NamedTuple):
    """One run: its line in the table, and the fields that it is selected by."""

    state: State
    row: Row
    own: dict[str, Any]  # values of OWN
    shared: Mapping[str, Any]  # the other fields

    @property
    def fields(self) -> dict[str, Any]:
        return {**self.shared, **self.own}


def entries(output_root: Path) -> tuple[dict[str, Entry], list[str]]:
    """Return all runs by name, oldest first, and a sentence for every folder whose record cannot be used."""
    index = _read(output_root / NAME)
    shared: dict[str, Mapping[str, Any]] = {}  # equal fields are one object, in memory and in the file
    current, complaints, fresh = {}, [], 0
    for name in sorted(os.listdir(output_root)) if output_root.is_dir() else ():
        state = _state(f"{output_root}/{name}")
        if state is None:
            continue
        entry = index.get(name)
        if entry is None or entry.state != state:
            try:
                entry = _entry(output_root / name, state, shared)
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


def _entry(folder: Path, state: State, shared: dict[str, Mapping[str, Any]]) -> Entry:
    """Read a record; UserError where it cannot be used."""
    one = record.load(folder / RECORD)
    if one.run_id != folder.name:
        raise UserError(f"{folder / RECORD} is the record of another run, {one.run_id}")
    fields = select.fields(one)
    own = {name: fields.pop(name) for name in OWN}
    fields = shared.setdefault(json.dumps(fields), fields)
    settled = time.time_ns() - max(state[2::4]) > SETTLED_NS
    return Entry(state if settled else [], run_table.row(one), own, fields)


def _state(folder: str) -> State | None:
    """Return what changes with a run's files; None where there is no record.

    The event log counts, too: an official record is checked against it.
    """
    try:
        state = _stat(f"{folder}/{RECORD}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    with suppress(FileNotFoundError):
        state += _stat(f"{folder}/{events.NAME}")
    return state


def _stat(path: str) -> State:
    status = os.stat(path)
    return [status.st_ino, status.st_size, status.st_ctime_ns, status.st_mtime_ns]


def _read(path: Path) -> dict[str, Entry]:
    """Return the index; an empty one where there is none, or none to be trusted."""
    try:
        header, body = path.read_bytes().split(b"\n", 1)
    except (OSError, ValueError):
        return {}
    if header != _header(body):
        return {}
    values = json.loads(body)
    shared = values["shared"]
    return {
        name: Entry(state, Row(*row), dict(zip(OWN, own, strict=True)), shared[number])
        for name, (state, row, own, number) in values["runs"].items()
    }


def _write(path: Path, current: Mapping[str, Entry]) -> None:
    """Write the index; a reader finds the old one or the new one, never a part."""
    objects = {id(entry.shared): entry.shared for entry in current.values()}
    texts = {place: json.dumps(fields) for place, fields in objects.items()}
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts.values()))}
    runs = {
        name: (entry.state, entry.row, list(entry.own.values()), numbers[texts[id(entry.shared)]])
        for name, entry in current.items()
        if entry.state
    }
    body = f'{{"shared":[{",".join(numbers)}],"runs":{json.dumps(runs)}}}'.encode()
    part = path.with_name(f"{NAME}.{secrets.token_hex(8)}")  # two commands may write at once
    try:
        part.write_bytes(_header(body) + b"\n" + body)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _header(body: bytes) -> bytes:
    """Return what makes the body valid: the sources that wrote it, and its own checksum."""
    return f"{provenance.sources()} {hashlib.sha256(body).hexdigest()}".encode()

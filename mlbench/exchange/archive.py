"""Zip files from elsewhere, read without trust: nothing is written to disk, and nothing is unpickled.

The results that MLBench published are flat zips of JSON lists and one line of text, and so are ours. What is
not of that shape is refused with a sentence: paths, links, encryption, names that come twice, and entries
that unpack to more than any result holds.
"""

import hashlib
import io
import json
import stat
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from mlbench.experiment.errors import UserError

MOST_BYTES = 256 * 2**20  # of the zip, and of all that it unpacks to; the largest published one has 1.6 MB
MOST_ENTRIES = 20_000  # a run on 1,024 workers has 15 files a worker
MOST_RATIO = 300  # unpacked over packed; text packs 10 to 30 times, a bomb of zeros 1,000 times
SMALL = 2**20  # bytes; below that a high ratio does no harm
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
ENCRYPTED = 0x1  # bit of the flags (APPNOTE.TXT 4.4.4)


@dataclass(frozen=True)
class Archive:
    """What a zip file holds: bytes by name."""

    path: Path
    sha256: str  # of the zip
    files: dict[str, bytes] = field(repr=False)

    def json(self, name: str) -> Any:
        """Return a file as JSON types; UserError where it is no JSON, or holds NaN or infinity."""
        try:
            return json.loads(self.files[name].decode(), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise self.refusal(f"{name} is not valid JSON ({str(error)[:60]})") from error

    def text(self, name: str) -> str:
        """Return a file as text; UserError where it is none."""
        try:
            return self.files[name].decode()
        except ValueError as error:
            raise self.refusal(f"{name} is not text") from error

    def refusal(self, reason: str) -> UserError:
        """Return the error to raise about this archive."""
        return refusal(self.path, reason)


def refusal(path: Path, reason: str) -> UserError:
    """Return the error to raise about a zip file."""
    return UserError(f"{path.name} is not imported: {reason}")


def read(path: Path) -> Archive:
    """Return all that a zip file holds; UserError says why it is not safe or not whole."""
    try:
        with path.open("rb") as source:
            packed = source.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if len(packed) > MOST_BYTES:
        raise refusal(path, f"it is larger than {MOST_BYTES // 2**20} MiB")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as opened:
            entries = opened.infolist()
            _check(path, entries)
            files = {entry.filename: _unpacked(path, opened, entry) for entry in entries}
    # struct.error, EOFError, NotImplementedError and the like: what zipfile raises on headers that lie
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, OSError) as error:
        raise refusal(path, f"it is damaged or no zip file ({str(error)[:60] or 'it ends early'})") from error
    return Archive(path, hashlib.sha256(packed).hexdigest(), files)


def _check(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Refuse from the directory alone, before anything is unpacked."""
    if len(entries) > MOST_ENTRIES:
        raise refusal(path, f"it has {len(entries):,} entries, {MOST_ENTRIES:,} are allowed")
    seen: set[str] = set()
    for entry in entries:
        name = entry.filename
        if any(mark in name for mark in "/\\:") or name.startswith(".") or not name.isprintable() or not name:
            raise refusal(path, f"{name[:80]!r} is a path, results are plain files")
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
            raise refusal(path, f"{name!r} is a link or another special file")
        if entry.flag_bits & ENCRYPTED:
            raise refusal(path, f"{name!r} is encrypted")
        if entry.compress_type not in METHODS:
            raise refusal(path, f"{name!r} is packed with a method that zip files of results never use")
        if name in seen:
            raise refusal(path, f"{name!r} is in it twice")
        seen.add(name)
        if entry.file_size > SMALL and entry.file_size > MOST_RATIO * entry.compress_size:
            raise refusal(path, f"{name!r} unpacks to more than {MOST_RATIO} times its size")
    if sum(entry.file_size for entry in entries) > MOST_BYTES:
        raise refusal(path, f"it unpacks to more than {MOST_BYTES // 2**20} MiB")


def _unpacked(path: Path, opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return an entry's bytes, never more than its header admits to."""
    with opened.open(entry) as stream:
        found = stream.read(entry.file_size + 1)
    if len(found) != entry.file_size:
        raise refusal(path, f"{entry.filename!r} has not the size that its header says")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")

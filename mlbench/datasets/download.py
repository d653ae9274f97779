"""Fetches archives with resume, mirrors and checksums, and unpacks them.

urllib does the transfer, as requests has no file: addresses. pooch, the usual choice for data sets, neither
resumes a broken transfer nor tries a second mirror. Packages come by their registry's client.
"""

import hashlib
import http.client
import lzma
import shutil
import subprocess
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import IO
from urllib.error import HTTPError, URLError

from filelock import FileLock

import mlbench
from mlbench.config.errors import DataError
from mlbench.datasets.tar import tarfile

PAUSES_S = (1.0, 3.0, 9.0)  # s between rounds over the mirrors, chosen 2026-11-21
TIMEOUT_S = 60.0  # s without a byte before a server counts as dead, chosen 2026-11-21
CLIENT_TIMEOUT_S = 600.0  # s that a registry's client may take, chosen 2026-11-22
BLOCK = 1 << 20  # bytes read at a time
TRANSIENT = (408, 425, 429)  # HTTP statuses below 500 that a later try may mend (RFC 9110, RFC 6585)


@dataclass(frozen=True)
class Archive:
    """A published file: its addresses, and the checksums that identify it."""

    urls: tuple[str, ...]  # mirrors (http, https, file), tried in this order
    file: str  # its name below <root>/downloads
    sha256: str | None = None
    md5: str | None = None
    size: int | None = None  # bytes
    # A package registry's client, which puts the file into the folder that it runs in. Tried before `urls`.
    command: tuple[str, ...] = ()


class _Rejected(Exception):
    """This mirror has not got the file, or has a wrong one. Another may have it."""


def download(
    archive: Archive, target: Path, *, progress: Callable[[int, int | None], None] | None = None
) -> Path:
    """Fetch `target` by the archive's command, or from the first of its urls that has it. Return it.

    The bytes gather in `<target>.part` and get their name once size and checksums are right, so a file with
    that name is whole. A transfer that breaks is resumed at its last byte, also by a later call. Without a
    checksum it starts over, since nothing would show that the pieces belong together. `progress` is called
    with the bytes so far and in all. Raises UserError when no mirror gives the file, or when a new or
    existing file is not the right one.
    """
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Data sets share archives: of several processes that need one, one fetches it while the others wait.
        with FileLock(target.with_name(f".{target.name}.lock")):
            if not target.exists():
                failures = dict[str, str]()
                show = progress or (lambda *_: None)
                if archive.command:
                    show(0, archive.size)
                    reason = _by_client(archive, target)
                    if reason is None:
                        show(target.stat().st_size, archive.size)
                        return target
                    failures[" ".join(archive.command)] = reason
                _from_mirrors(archive, target, show, failures)
                return target
    if fault := _fault(target, archive):
        raise DataError(f"{target} {fault}", hint="remove it to download it again")
    return target


def _from_mirrors(
    archive: Archive,
    target: Path,
    progress: Callable[[int, int | None], None],
    failures: dict[str, str],
) -> None:
    """Fetch `target` from the first mirror that has it. UserError has the reason of each in `failures`."""
    part = target.with_name(target.name + ".part")
    mirrors = list(archive.urls)
    for pause in (*PAUSES_S, None):
        for url in tuple(mirrors):
            if not (archive.sha256 or archive.md5):
                part.unlink(missing_ok=True)
            continued = part.exists()
            try:
                _transfer(url, part, progress)
                fault = _fault(part, archive)
                if not fault:
                    part.replace(target)
                    return
                part.unlink()  # or the next try would go on from wrong bytes
                raise (OSError if continued else _Rejected)(f"what it sends {fault}")
            except _Rejected as error:
                failures[url] = str(error)
                mirrors.remove(url)
            except (OSError, http.client.HTTPException) as error:
                failures[url] = str(error) or type(error).__name__
        if not mirrors or pause is None:
            break
        sleep(pause)
    raise DataError(
        f"{target.name} cannot be fetched: "
        + "; ".join(f"{url}: {reason}" for url, reason in failures.items()),
        hint=f"try again later (a broken transfer resumes), or put the file at {target}",
    )


def _by_client(archive: Archive, target: Path) -> str | None:
    """Fetch `target` with a registry's client. Return why that failed, or None if it is there."""
    program = shutil.which(archive.command[0])
    if program is None:
        return f"{archive.command[0]} is not installed"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        try:
            done = subprocess.run(
                [program, *archive.command[1:]],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CLIENT_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return f"it took more than {CLIENT_TIMEOUT_S:.0f} s"
        files = [path for path in Path(folder).iterdir() if path.is_file()]
        if done.returncode or len(files) != 1:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            return said[-1].strip() if said else f"it ended with exit code {done.returncode}"
        if fault := _fault(files[0], archive):
            return f"what it brings {fault}"
        files[0].replace(target)
    return None


def _transfer(url: str, part: Path, progress: Callable[[int, int | None], None]) -> None:
    """Append to `part` what it lacks of `url`. Raises OSError or HTTPException when the transfer breaks."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"mlbench/{mlbench.__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S)
    except HTTPError as error:
        error.close()
        if error.code == 416 and have:  # there is nothing after the bytes fetched before
            return
        reason = f"the server returned {error.code} {error.reason}"
        lasting = error.code < 500 and error.code not in TRANSIENT
        raise (_Rejected if lasting else OSError)(reason) from error
    except (URLError, ValueError) as error:
        lasting = url.startswith("file:") or isinstance(error, ValueError)
        raise (_Rejected if lasting else OSError)(str(getattr(error, "reason", error))) from error
    with response:
        going_on = getattr(response, "status", None) == 206
        have = have if going_on else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if going_on else "wb") as file:
            progress(have, total)
            while block := response.read(BLOCK):
                _write(file, block)
                have += len(block)
                progress(have, total)
    if total is not None and have < total:
        raise OSError(f"the transfer broke off after {have:,} of {total:,} bytes")


def _write(file: IO[bytes], block: bytes) -> None:
    try:
        file.write(block)
        file.flush()
    except OSError as error:  # no other mirror would help
        raise DataError(f"cannot write {file.name}: {error.strerror}", hint="free space there") from error


def _fault(path: Path, archive: Archive) -> str:
    """Return what is wrong with a file, "" when nothing is."""
    size = path.stat().st_size
    if archive.size is not None and size != archive.size:
        return f"has {size:,} bytes instead of {archive.size:,}"
    for algorithm, digest in (("sha256", archive.sha256), ("md5", archive.md5)):
        if digest is None:
            continue
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, algorithm).hexdigest()
        if actual != digest:
            return f"has {algorithm.upper()} {actual} instead of {digest}"
    return ""


def extract(archive: Path, folder: Path) -> None:
    """Unpack a .tar (any compression) or .zip file below `folder`.

    Nothing is written outside `folder`. Raises UserError for an archive that is damaged or truncated. Also
    for a tar with a path, link or device that the data filter of PEP 706 refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if archive.suffix == ".zip":
            shutil.unpack_archive(archive, folder)  # leaves out what has an absolute path or ".."
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
    except tarfile.FilterError as error:
        raise DataError(
            f"{archive} has an entry that is not a file or leads out of its folder: {error.tarinfo.name!r}",
            hint="do not use this archive",
        ) from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        # What bz2, gzip and shutil raise for damage is an OSError without a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(
            f"{archive} is damaged or truncated: {error}", hint="remove it and download it again"
        ) from error

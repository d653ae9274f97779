"""Prepared data sets: a folder of memory-mapped Arrow files and a manifest of their origin.

`<root>/<dataset>/` holds one Arrow IPC file a split and `manifest.json`. Each file has a single uncompressed
record batch, so that a column is one stretch of the mapped file. The manifest has name, source, licence,
parameters of the preparation, SHA-256 of the inputs, and rows, bytes and SHA-256 of the outputs. The manifest
holds no time and no path: the same data set has the same manifest everywhere.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from filelock import FileLock

import mlbench
from mlbench.config.errors import DataError, UserError
from mlbench.datasets import croissant
from mlbench.datasets.column_buffer import ColumnBuffer
from mlbench.datasets.download import Archive, download

if TYPE_CHECKING:
    from torch import Tensor

# Called as progress(step, done, total or None when unknown, unit). The unit is "bytes" or "rows".
Progress = Callable[[str, int, int | None, str], None]


class DatasetInfo(NamedTuple):
    """A data set that a task can prepare: the values of `DATASETS` in the task's data module."""

    manifest: Mapping[str, Any]  # source, licence and parameters
    download: int | None  # bytes to fetch. None: unknown
    prepared: int  # bytes of the prepared columns
    train_rows: int | None = None  # that an epoch cuts into global batches. None: unknown, or no rows


FORMAT = 1  # raised when files of older preparations can no longer be read
MANIFEST = "manifest.json"
State = list[int]  # of a file: see `state`
OPENED: dict[Path, list[State]] = {}  # the states in which this process has opened splits (verify.changed)


class DatasetWriter:
    """Writes the splits of a data set into a hidden folder, which gets its name when it is complete.

    - inputs: name, bytes and SHA-256 of each file that the data set is made from.
    - splits: file, rows, bytes and SHA-256 of each split.
    - extra: further entries of the manifest, found while preparing.
    """

    def __init__(self, folder: Path, progress: "Progress | None" = None) -> None:
        self.folder = folder
        self.progress = progress or (lambda *_: None)
        self.inputs: list[dict[str, Any]] = []
        self.splits: dict[str, dict[str, Any]] = {}
        self.schemas: dict[str, pa.Schema] = {}
        self.extra: dict[str, Any] = {}

    def fetch(self, archive: Archive) -> Path:
        """Return an archive below the data root, fetched if missing, and record it as an input."""
        path = self.folder.parent / "downloads" / archive.file
        download(archive, path, progress=partial(self.bytes_done, f"fetch {archive.file}"))
        self.add_input(path)
        return path

    def bytes_done(self, step: str, done: int, total: int | None) -> None:
        """Report the bytes of a step so far and in all."""
        self.progress(step, done, total, "bytes")

    def add_input(self, path: Path) -> None:
        """Record name, bytes and SHA-256 of a file that this data set is made from."""
        self.inputs.append({"file": path.name, **_fingerprint(path)})

    def write(self, split: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Write a split from a stream of record batches in bounded memory. Return its rows.

        Columns are numbers, fixed-shape tensors, or lists, strings and bytes of any length,
        without nulls.
        """
        path = self.folder / f"{split}.arrow"
        with ColumnBuffer(self.folder / f"{split}.columns") as buffer:
            for batch in batches:
                buffer.append(batch)
                self.progress(f"write {split}", buffer.rows, None, "rows")
            whole = buffer.record_batch()
            self.schemas[split] = whole.schema
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
                writer.write_batch(whole)
            del whole  # which maps files that the buffer removes: NFS keeps those, and so their folder
        _flush(path)
        self.splits[split] = {"file": path.name, "rows": buffer.rows, **_fingerprint(path)}
        return buffer.rows


def write_dataset(
    folder: Path,
    write_splits: Callable[[DatasetWriter], object],
    *,
    manifest: Mapping[str, Any],
    progress: Progress | None = None,
) -> Path:
    """Write the data set `folder` with `write_splits` unless it exists, and return `folder`.

    It exists if its manifest has the values of `manifest` (name, source, licence, parameters ...) and the
    current format. The files are written into a hidden folder next to it, which is renamed at the end, under
    a lock. So a killed process leaves no incomplete data set. Of several processes that start at once, one
    writes while the others wait.
    """
    expected = {"format": FORMAT, **manifest}
    if not _is_current(folder, expected):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(f".{folder.name}.lock")):
                if not _is_current(folder, expected):  # another process may have made it meanwhile
                    _make(folder, write_splits, expected, progress)
        except OSError as error:
            raise DataError(
                f"cannot prepare the data set {folder}: {error}",
                hint="free space, check access, or give another data_root=PATH",
            ) from error
    return folder


def prepare(
    name: str,
    root: Path,
    datasets: Mapping[str, DatasetInfo],
    writers: Mapping[str, Callable[[DatasetWriter], object]],
    *,
    progress: Progress | None = None,
) -> Path:
    """Write the data set `name` of a task below `root` unless it exists, and return its folder.

    `writers` has what writes its splits. Raises UserError for a name that is not in `datasets`.
    """
    require_known(name, datasets)
    manifest = {"name": name, **datasets[name].manifest}
    return write_dataset(root / name, writers[name], manifest=manifest, progress=progress)


def require_known(name: str, names: Iterable[str]) -> None:
    """Raise UserError unless a task has the data set `name`."""
    if name not in names:
        raise DataError(f"unknown data set {name!r}", hint=f"the task has {', '.join(names)}")


def preparing(folder: Path) -> str:
    """Return the command that prepares a data set again, for the hint of an error."""
    return f"mlbench data prepare task=NAME scale=SCALE data_root={folder.parent}"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a prepared data set. Raises UserError if there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{folder} is not a prepared data set", hint=preparing(folder)) from error
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict):
        raise DataError(f"{folder / MANIFEST} is damaged", hint=f"remove {folder}, then {preparing(folder)}")
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{folder} has format {manifest.get('format')}, this mlbench reads {FORMAT}",
            hint=f"{preparing(folder)} writes it again",
        )
    if not _are_splits(manifest.get("splits")):
        raise DataError(f"{folder / MANIFEST} is damaged", hint=f"remove {folder}, then {preparing(folder)}")
    return manifest


def _are_splits(splits: Any) -> bool:
    """Return whether the manifest's entry `splits` has the shape that `DatasetWriter.write` gives it."""
    return isinstance(splits, dict) and all(
        isinstance(split, dict)
        and isinstance(split.get("file"), str)
        and isinstance(split.get("sha256"), str)
        and all(isinstance(split.get(name), int) for name in ("rows", "bytes"))
        for split in splits.values()
    )


def manifest_hash(folder: Path) -> str:
    """Return 16 hex digits that identify the data a result was made from."""
    values = {k: v for k, v in read_manifest(folder).items() if k != "mlbench"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def read_split(folder: Path, split: str) -> pa.Table:
    """Return a split as a memory-mapped table. Nothing is read until it is touched."""
    splits = read_manifest(folder)["splits"]
    if split not in splits:
        raise DataError(f"{folder} has no split {split!r}", hint=f"it has {', '.join(splits)}")
    path = folder / splits[split]["file"]
    if not path.is_file() or path.stat().st_size != splits[split]["bytes"]:
        raise _damaged(path)
    opened = OPENED.setdefault(path.absolute(), [])
    opened.append(state(path))
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (pa.ArrowInvalid, OSError) as error:  # OSError: Arrow's for a damaged footer
        raise _damaged(path) from error
    opened.append(state(path))
    return table


def state(path: Path) -> State:
    """Return a file's size, times of modification and of change (which cannot be set by hand), and inode.

    Links are followed, those of folders too. Raises UserError if there is no such file.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", hint="prepare the data set again") from error
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def column(table: pa.Table, name: str) -> np.ndarray:
    """Return a column of numbers or tensors, `[rows, ...]`, as a read-only view of the file."""
    array = table.column(name).chunk(0)
    shape: tuple[int, ...] = (len(array),)
    if isinstance(array, pa.FixedShapeTensorArray):
        shape += tuple(array.type.shape)
        array = array.storage
    while pa.types.is_fixed_size_list(array.type):
        if len(shape) == 1:
            shape += (array.type.list_size,)
        array = array.flatten()
    return array.to_numpy(zero_copy_only=True).reshape(shape)


def tensor(table: pa.Table, name: str) -> "Tensor":
    """Return `column` as a tensor on the same memory.

    Writing into it in place ends the process. Index or slice it into a batch instead.
    """
    import torch

    # torch.from_numpy warns about read-only memory. The exchange protocol carries the flag.
    return torch.from_dlpack(column(table, name))


def list_column(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return values and offsets of lists or bytes. Row i is `values[offsets[i] : offsets[i + 1]]`."""
    array = table.column(name).chunk(0)
    _, offsets, *rest = array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    if pa.types.is_large_list(array.type):
        return array.values.to_numpy(zero_copy_only=True), starts
    return np.frombuffer(rest[0] or b"", np.uint8), starts


def record_batch(columns: Mapping[str, np.ndarray]) -> pa.RecordBatch:
    """Return arrays `[rows, ...]` as one record batch, inner dimensions as fixed-shape tensors."""
    arrays = {}
    for name, values in columns.items():
        values = np.ascontiguousarray(values)
        flat = values.ndim == 1
        arrays[name] = pa.array(values) if flat else pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    return pa.record_batch(arrays)


def verify(folder: Path) -> dict[str, Any]:
    """Hash the files again and return the manifest. Raises UserError naming a file that changed."""
    manifest = read_manifest(folder)
    for split in manifest["splits"].values():
        path = folder / split["file"]
        if not path.is_file() or _fingerprint(path) != {k: split[k] for k in ("bytes", "sha256")}:
            raise _damaged(path)
    return manifest


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} is damaged or missing: it differs from its manifest",
        hint=f"remove {path.parent}, then {preparing(path.parent)}",
    )


def _is_current(folder: Path, expected: Mapping[str, Any]) -> bool:
    if not (folder / MANIFEST).is_file():
        return False
    try:
        manifest = read_manifest(folder)
    except UserError:
        return False  # another format, or damaged: written again
    plain = json.loads(json.dumps(expected))
    return all(manifest.get(name) == value for name, value in plain.items())


def _make(
    folder: Path,
    write_splits: Callable[[DatasetWriter], object],
    expected: Mapping[str, Any],
    progress: Progress | None,
) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir()
    try:
        writer = DatasetWriter(partial, progress)
        write_splits(writer)
        _finalize(writer, expected)
        _replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _finalize(writer: DatasetWriter, expected: Mapping[str, Any]) -> None:
    """Write the manifest and its Croissant form, and have the kernel write the folder to the disk."""
    manifest = {
        **expected,
        **writer.extra,
        "mlbench": mlbench.__version__,
        "inputs": writer.inputs,
        "splits": writer.splits,
    }
    description = croissant.describe(manifest, writer.schemas)
    for name, content in ((MANIFEST, manifest), (croissant.NAME, description)):
        path = writer.folder / name
        path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        _flush(path)
    _flush(writer.folder)


def _replace(partial: Path, folder: Path) -> None:
    """Give the new folder its name. Readers that have the old data set mapped keep the old rows."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    return _fingerprint(path)["sha256"]


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def _flush(path: Path) -> None:
    """Have the kernel write a file or a folder's entries to the disk before going on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a folder on a file system without fsync for those (CIFS)
            raise
    finally:
        os.close(handle)

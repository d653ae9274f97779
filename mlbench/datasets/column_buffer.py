"""Joins many record batches into one in bounded memory.

An Arrow file of many record batches cannot be mapped as one array. So the values of each column are appended
to a separate file, and the single record batch at the end maps these files.
"""

import shutil
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

LISTS = (pa.ListType, pa.LargeListType)
WIDE = {  # text and bytes of any length, and their types with 64-bit offsets
    pa.string(): pa.large_string(),
    pa.large_string(): pa.large_string(),
    pa.binary(): pa.large_binary(),
    pa.large_binary(): pa.large_binary(),
}


class ColumnBuffer:
    """Appends record batches of one schema to files in `folder`, which it creates and removes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.schema: pa.Schema | None = None
        self.rows = 0
        self.files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> "ColumnBuffer":
        self.folder.mkdir()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for file in self.files.values():
            file.close()
        shutil.rmtree(self.folder, ignore_errors=kind is not None)  # the first error is the one to report

    def append(self, batch: pa.RecordBatch) -> None:
        """Add the rows of `batch`. All batches have the schema of the first, and no nulls."""
        self.schema = self.schema or batch.schema
        if batch.schema != self.schema:
            raise ValueError(f"a batch has the schema {batch.schema}, the first one had {self.schema}")
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if array.null_count:
                raise ValueError(f"column {name} has nulls")
            self._append(name, array)
        self.rows += len(batch)

    def record_batch(self) -> pa.RecordBatch:
        """Return all rows as one batch, mapped from the files. Offsets become 64-bit."""
        if self.schema is None:
            raise ValueError("a split needs at least one batch")
        for file in self.files.values():
            file.flush()
        arrays = {each.name: self._whole(each.name, each.type, self.rows) for each in self.schema}
        return pa.record_batch(arrays)

    def _append(self, name: str, array: pa.Array) -> None:
        if isinstance(array, pa.FixedShapeTensorArray):
            self._append(name, array.storage)
        elif pa.types.is_fixed_size_list(array.type):
            self._append(name, array.flatten())
        elif isinstance(array.type, LISTS):
            self._write(f"{name}.lengths", np.asarray(array.value_lengths(), np.int64))
            self._append(f"{name}.values", array.flatten())
        elif array.type in WIDE:
            array = array.cast(WIDE[array.type])
            _, offsets, data = array.buffers()
            starts = np.frombuffer(offsets, np.int64)[array.offset :][: len(array) + 1]
            self._write(f"{name}.lengths", np.diff(starts))
            if data is not None:
                self._write(name, np.frombuffer(data, np.uint8)[starts[0] : starts[-1]])
        else:
            self._write(name, array.to_numpy(zero_copy_only=True))

    def _write(self, name: str, values: np.ndarray) -> None:
        if name not in self.files:
            self.files[name] = (self.folder / name).open("wb")
        self.files[name].write(np.ascontiguousarray(values).data)

    def _whole(self, name: str, kind: pa.DataType, rows: int) -> pa.Array:
        if isinstance(kind, pa.FixedShapeTensorType):
            storage = self._whole(name, kind.storage_type, rows)
            return pa.ExtensionArray.from_storage(kind, storage)
        if pa.types.is_fixed_size_list(kind):
            inner = self._whole(name, kind.value_type, rows * kind.list_size)
            return pa.FixedSizeListArray.from_arrays(inner, kind.list_size)
        if isinstance(kind, LISTS) or kind in WIDE:
            lengths = np.frombuffer(self._map(f"{name}.lengths"), np.int64)
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            if isinstance(kind, LISTS):
                inner = self._whole(f"{name}.values", kind.value_type, int(offsets[-1]))
                return pa.LargeListArray.from_arrays(pa.array(offsets), inner)
            buffers = [None, pa.py_buffer(offsets), self._map(name)]
            return pa.Array.from_buffers(WIDE[kind], rows, buffers)
        return pa.Array.from_buffers(kind, rows, [None, self._map(name)])

    def _map(self, name: str) -> pa.Buffer:
        path = self.folder / name
        if not path.exists() or path.stat().st_size == 0:
            return pa.py_buffer(b"")  # an empty file cannot be mapped
        return pa.memory_map(str(path)).read_buffer()

"""Reads LIBSVM/svmlight text, `label index:value index:value ...` a line, in bounded memory.

scikit-learn parses blocks of whole lines. Its errors have no line number, so a block that it refuses is
searched for the line.
"""

import bz2
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np

from mlbench.config.errors import UserError

BLOCK = 16 << 20  # bytes of text parsed at a time: some 500 rows of epsilon
DENSE_BYTES = 64 << 20  # of dense rows at a time
ZERO_BASED: Any = True  # keeps indices as they are. scikit-learn has no type for it
FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a file.

    - labels: [rows] float64.
    - entries: [rows, columns] sparse CSR matrix, float64, with the column numbers of the file.
    - text, first_line: the block's lines, and the number in the file of the first of them, from 1.
    """

    labels: np.ndarray
    entries: Any
    text: bytes
    first_line: int

    def line(self, row: int) -> int:
        """Return the line number in the file of row `row`."""
        numbered = enumerate(self.text.split(b"\n"), self.first_line)
        return [number for number, line in numbered if line.partition(b"#")[0].strip()][row]

    def dense(self, features: int, *, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield parts of at most DENSE_BYTES: [rows, features] float32, and their labels.

        Column `first` of the file is feature 0.
        """
        size = max(1, DENSE_BYTES // (4 * features))
        for begin in range(0, len(self.labels), size):
            part = self.entries[begin : begin + size].tocoo()
            rows = np.zeros((part.shape[0], features), np.float32)
            rows[part.row, part.col - first] = part.data
            yield rows, self.labels[begin : begin + size]


def read(path: Path, *, progress: Callable[[int, int], None] | None = None) -> Iterator[RowBlock]:
    """Yield the rows of a text file, plain, .bz2 or .gz, in blocks.

    The next block is read and decompressed while the last is parsed. `progress` is called with the
    bytes of the file read so far and in all. Raises UserError with the number of a line that is not
    in the format, and for a file that is missing, truncated or without rows.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist", hint="give the path of a LIBSVM text file")
    total = path.stat().st_size
    line, rows = 1, 0
    with path.open("rb") as raw, _opened(raw, path.suffix) as file, ThreadPoolExecutor(1) as thread:
        ahead = thread.submit(file.readlines, BLOCK)
        while True:
            try:
                text = b"".join(ahead.result())
            except (EOFError, OSError, zlib.error) as error:
                raise UserError(
                    f"{path} is damaged or truncated: {error}", hint="download it again"
                ) from error
            if progress:
                progress(min(raw.tell(), total), total)
            if not text:
                break
            ahead = thread.submit(file.readlines, BLOCK)
            block = _block(text, first_line=line, path=path)
            line += text.count(b"\n")
            rows += len(block.labels)
            yield block
    if not rows:
        raise UserError(f"{path} has no rows", hint="give a LIBSVM text file")


def _opened(raw: IO[bytes], suffix: str) -> IO[bytes] | gzip.GzipFile:
    if suffix == ".bz2":
        return bz2.BZ2File(raw)
    return gzip.GzipFile(fileobj=raw) if suffix == ".gz" else raw


def _block(text: bytes, *, first_line: int, path: Path) -> RowBlock:
    """Parse whole lines, the first of which is the file's line number `first_line`."""
    try:
        entries, labels = _parse(text)
    except ValueError as error:
        lines = text.split(b"\n")
        wrong = _first_malformed(lines)
        content = lines[wrong].decode(errors="replace").strip()
        content = content if len(content) <= 60 else content[:60] + " ..."
        raise UserError(
            f"{path}, line {first_line + wrong}: {content!r} is not of the form "
            "`label index:value index:value ...` with ascending indices",
            hint="give a LIBSVM/svmlight text file, plain, .bz2 or .gz, of numbers that float32 holds",
        ) from error
    return RowBlock(labels, entries, text, first_line)


def _parse(text: bytes) -> tuple[Any, np.ndarray]:
    """Return entries and labels of whole lines. Raises ValueError if one of them is not in the format."""
    from sklearn.datasets import load_svmlight_file

    if b"qid:" in text and re.search(rb"^[^#\n]*qid:", text, re.MULTILINE):  # scikit-learn leaves it out
        raise ValueError("rows with a query id")
    try:
        entries, labels = load_svmlight_file(BytesIO(text), dtype=np.float64, zero_based=ZERO_BASED)
    except OverflowError as error:  # an index that no integer holds
        raise ValueError(str(error)) from error
    if not (np.abs(entries.data) <= FLOAT32_MAX).all() or not np.isfinite(labels).all():
        raise ValueError("a number is not finite in float32")
    return entries, labels


def _first_malformed(lines: list[bytes]) -> int:
    """Return which line is the first that cannot be parsed, by bisection."""
    begin, end = 0, len(lines)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            _parse(b"\n".join(lines[begin:middle]))
            begin = middle
        except ValueError:
            end = middle
    return begin

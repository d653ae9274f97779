"""Reads LIBSVM/svmlight text, `label index:value index:value ...` a line, in bounded memory.

The whole text is one stream of numbers to Arrow's CSV reader, and whole-array operations put the
numbers in their places. scikit-learn's reader, the well-kept alternative, took 2.1 times as long for
text like epsilon's (CPU time, 2026-11-21) and tells no line numbers.
"""

import bz2
import gzip
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
from pyarrow import csv

from mlbench.experiment.errors import UserError

BLOCK = 16 << 20  # bytes of text parsed at a time: some 500 rows of epsilon
BETWEEN = bytes.maketrans(bytes(range(33)) + b":", b"\n" * 34)  # blanks and colons
NUMBER = rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
EXACT = 2.0**53  # the integers up to here are exact in float64
FLOAT32_MAX = float(np.finfo(np.float32).max)
BLANK = rb"[\x00-\x20]"
LINE = re.compile(rb"B*(?:N(?:B+N:N)*)?B*".replace(b"B", BLANK).replace(b"N", NUMBER))


@dataclass(frozen=True)
class Block:
    """Rows of a file: row i has the entries `starts[i]` to `starts[i + 1]`, and stands on `lines[i]`."""

    labels: np.ndarray  # [rows] float64
    lines: np.ndarray  # [rows] int64, counted from 1
    starts: np.ndarray  # [rows + 1] int64
    columns: np.ndarray  # [entries] int64, as in the file, ascending within a row
    values: np.ndarray  # [entries] float64

    def dense(self, features: int, *, first: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield parts of at most 64 MiB: [rows, features] float32 and their labels.

        Column `first` of the file is feature 0. Sparse rows grow: hence the parts.
        """
        size = max(1, (64 << 20) // (4 * features))
        for begin in range(0, len(self.labels), size):
            starts = self.starts[begin : begin + size + 1]
            entries = slice(starts[0], starts[-1])
            rows = np.zeros((len(starts) - 1, features), np.float32)
            rows[row_of_entry(starts), self.columns[entries] - first] = self.values[entries]
            yield rows, self.labels[begin : begin + size]


def read(path: Path, *, progress: Callable[[int, int], None] | None = None) -> Iterator[Block]:
    """Yield the rows of a text file, plain, .bz2 or .gz, in blocks.

    The next block is read and decompressed while the last is parsed. `progress` is called with the
    bytes of the file read so far and in all. Raises UserError with the number of a line that is not
    in the format, and for a file that is missing, truncated or without rows.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}", hint="give the path of a LIBSVM text file")
    total = path.stat().st_size
    line, rows = 1, 0
    with path.open("rb") as raw, _opened(raw, path.suffix) as file, ThreadPoolExecutor(1) as thread:
        rest = b""
        ahead = thread.submit(file.read, BLOCK)
        while True:
            try:
                text = ahead.result()
            except (EOFError, OSError) as error:
                raise UserError(f"{path} is damaged or truncated: {error}", hint="get it again") from error
            at_end = not text
            if not at_end:
                ahead = thread.submit(file.read, BLOCK)
            end = text.rfind(b"\n") + 1 if not at_end else 0
            whole, rest = (rest + text[:end], text[end:]) if end or at_end else (b"", rest + text)
            if whole:
                block = _parse(whole, line=line, path=path)
                line += whole.count(b"\n")
                rows += len(block.labels)
                yield block
            if progress:
                progress(min(raw.tell(), total), total)
            if at_end:
                break
    if not rows:
        raise UserError(f"{path} has no rows", hint="give a LIBSVM text file")


def row_of_entry(starts: np.ndarray) -> np.ndarray:
    """Return [entries], the row that each entry belongs to."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def _opened(raw: IO[bytes], suffix: str) -> IO[bytes] | gzip.GzipFile:
    if suffix == ".bz2":
        return bz2.BZ2File(raw)
    return gzip.GzipFile(fileobj=raw) if suffix == ".gz" else raw


def _parse(text: bytes, *, line: int, path: Path) -> Block:
    """Parse whole lines, the first of which is the file's line number `line`."""
    if b"#" in text:
        text = re.sub(rb"#[^\n]*", b"", text)
    numbers = _numbers(text)
    letters = np.frombuffer(b"\n" + text + b"\n", np.uint8)
    colon = letters == ord(":")
    between = (letters <= ord(" ")) | colon
    begin = np.flatnonzero(between[:-1] & ~between[1:]) + 1  # of each number's letters
    is_value = colon[begin - 1]
    line_begin = np.flatnonzero(letters[:-1] == ord("\n")) + 1
    label = np.unique(np.searchsorted(begin, line_begin))
    label = label[label < len(begin)]
    is_index = ~is_value
    is_index[label] = False
    if (
        numbers is None
        or len(numbers) != len(begin)
        or is_value[label].any()
        or not np.array_equal(is_index[:-1], is_value[1:])
        or is_index[-1:].any()
        or (between[:-1] & colon[1:]).any()
        or (colon[:-1] & between[1:]).any()
        or not (np.abs(numbers) <= FLOAT32_MAX).all()
    ):
        raise _malformed(text, line, path)
    columns = numbers[is_index]
    starts = np.append((label - np.arange(len(label))) // 2, len(columns))
    block = Block(
        labels=numbers[label],
        lines=np.searchsorted(line_begin, begin[label], side="right") + line - 1,
        starts=starts,
        columns=np.minimum(columns, EXACT).astype(np.int64),
        values=numbers[is_value],
    )
    _check_columns(block, columns, path)
    return block


def _numbers(text: bytes) -> np.ndarray | None:
    """Return every number of the text in order, float64; None if something is not a number."""
    stream = text.translate(BETWEEN)
    if not stream.strip():
        return np.empty(0)
    try:
        table = csv.read_csv(
            pa.BufferReader(stream),
            read_options=csv.ReadOptions(column_names=["number"], block_size=len(stream), use_threads=False),
            parse_options=csv.ParseOptions(quote_char=False),
            convert_options=csv.ConvertOptions(column_types={"number": pa.float64()}, null_values=[]),
        )
    except pa.ArrowInvalid:
        return None
    return table.column("number").to_numpy()


def _check_columns(block: Block, columns: np.ndarray, path: Path) -> None:
    wrong = (columns != block.columns) | np.signbit(columns)
    rising = np.diff(block.columns) > 0
    row = row_of_entry(block.starts)
    wrong[1:] |= ~rising & (row[1:] == row[:-1])
    if wrong.any():
        entry = int(np.argmax(wrong))
        raise UserError(
            f"{path}, line {block.lines[row[entry]]}: index {columns[entry]:g} is not a whole number "
            "above the one before it",
            hint="LIBSVM lines are: label index:value index:value ..., indices ascending",
        )


def _malformed(text: bytes, line: int, path: Path) -> UserError:
    number, content = next(
        (number, content)
        for number, content in enumerate(text.split(b"\n"), line)
        if not LINE.fullmatch(content)
        or any(abs(float(word)) > FLOAT32_MAX for word in re.findall(NUMBER, content))
    )
    shown = content.decode(errors="replace").strip()
    shown = shown if len(shown) <= 60 else shown[:60] + " ..."
    return UserError(
        f"{path}, line {number}: {shown!r} is not of the form `label index:value index:value ...`",
        hint="give a LIBSVM/svmlight text file, plain, .bz2 or .gz, of numbers that float32 holds",
    )

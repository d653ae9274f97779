"""Lines of two files side by side."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import IO

from mlbench.config.errors import UserError

Pair = tuple[str, str]  # a line and its translation


def pairs(source: Path, target: Path, *, errors: str = "strict") -> Iterator[Pair]:
    """Yield the lines of two files side by side. Only a line feed ends a line.

    Raises UserError if one has more lines, or, with errors="strict", for the first line that is not UTF-8.
    """
    with source.open("rb") as file, target.open("rb") as other:
        sides = _decoded(file, errors), _decoded(other, errors)
        yield from paired(*sides, names=(str(source), str(target)))


def paired(sources: Iterable[str], targets: Iterable[str], *, names: Sequence[str]) -> Iterator[Pair]:
    """Yield both sides together. Raises UserError, with their names, if one ends before the other."""
    for number, (line, other) in enumerate(zip_longest(sources, targets), 1):
        if line is None or other is None:
            short, long = names if line is None else reversed(names)
            raise UserError(
                f"{short} ends before line {number}, {long} does not",
                hint="line i of one must translate line i of the other",
            )
        yield line, other


def _decoded(file: IO[bytes], errors: str) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:
            yield line.decode(errors=errors).rstrip("\n")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{file.name}, line {number} is not UTF-8", hint="convert the file, e.g. with iconv -t utf-8"
            ) from error

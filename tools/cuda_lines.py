"""Prints the lines that only a GPU can execute: those for CUDA that no test on a CPU reaches.

    python tools/cuda_lines.py [PYTEST_ARGUMENT ...]    default: the tests with stand-ins for a GPU

A line is for CUDA where it calls torch.cuda, or where a condition that says so leads to it. Exit code: that
of the tests.
"""

import ast
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("training", "tasks", "clusters", "launch")  # of mlbench, that compute on the device
# Words of tests that have a stand-in.
STAND_INS = ("stand_in_gpu", "stand_in_graphs", "gpu_timer", 'type="cuda"', 'torch.cuda, "', '"cpu", "cuda"')


def main(arguments: Sequence[str]) -> int:
    """Run the tests and print what they left out."""
    tests = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if _has_stand_in(path)]
    expected = {path: set(cuda_lines(path.read_text())) for path in _sources()}
    executed: set[tuple[str, int]] = set()
    every = [(path, line) for path, lines in expected.items() for line in sorted(lines)]
    names = {str(path) for path, _ in every}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in names:
            return None
        executed.add((name, frame.f_lineno))
        return trace

    sys.settrace(trace)
    threading.settrace(trace)
    try:
        code = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *(arguments or tests)])
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    left = [(path, line) for path, line in every if (str(path), line) not in executed]
    for path, line in left:
        print(f"{path.relative_to(ROOT)}:{line}: {path.read_text().splitlines()[line - 1].strip()}")
    print(f"{len(left)} of {len(every)} lines for CUDA need a GPU")
    return int(code)


def cuda_lines(source: str) -> Iterator[int]:
    """Yield the first lines of the statements that are for CUDA alone."""
    yield from _of(ast.parse(source).body, inside=False)


def _of(statements: Sequence[ast.stmt], *, inside: bool) -> Iterator[int]:
    for statement in statements:
        compound = isinstance(getattr(statement, "body", None), list)
        if not compound and (inside or "torch.cuda." in ast.unparse(statement)):
            yield statement.lineno
        if not isinstance(statement, ast.If):
            for part in ("body", "orelse", "finalbody"):
                yield from _of(getattr(statement, part, None) or [], inside=inside)
            for handler in getattr(statement, "handlers", []):
                yield from _of(handler.body, inside=inside)
            continue
        test = ast.unparse(statement.test)
        is_cuda = "cuda" in test and "is_available" not in test
        other = is_cuda and re.search(r"not [\w.]*cuda|!= .cuda", test) is not None
        is_cuda = is_cuda and " or " not in test  # which leads there without a GPU, too
        yield from _of(statement.body, inside=inside or (is_cuda and not other))
        yield from _of(statement.orelse, inside=inside or other)
        if other and isinstance(statement.body[-1], ast.Return | ast.Raise):
            inside = True  # what follows


def _has_stand_in(path: Path) -> bool:
    return any(name in path.read_text() for name in STAND_INS)


def _sources() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / "mlbench" / folder).rglob("*.py"))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Parallel files, line by line."""

from pathlib import Path

import pytest

from mlbench.config.errors import UserError
from mlbench.tasks.translation import lines


def files(folder: Path, source: bytes, target: bytes) -> tuple[Path, Path]:
    (folder / "a.en").write_bytes(source)
    (folder / "a.de").write_bytes(target)
    return folder / "a.en", folder / "a.de"


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    """CommonCrawl has stray carriage returns and Unicode line separators inside its lines."""
    both = files(tmp_path, "one\rstill one\u2028\x85\ntwo\n".encode(), b"eins\nzwei")
    assert list(lines.pairs(*both)) == [("one\rstill one\u2028\x85", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(("source", "target"), [(b"a\n", b"a\nb\n"), (b"a\nb\n", b"a\n")])
def test_files_of_unequal_length_do_not_translate_each_other(
    tmp_path: Path, source: bytes, target: bytes
) -> None:
    short = "a.en" if len(source) < len(target) else "a.de"
    with pytest.raises(UserError, match=rf"{short} ends before line 2"):
        list(lines.pairs(*files(tmp_path, source, target)))


def test_what_is_not_utf8_is_named_or_replaced(tmp_path: Path) -> None:
    both = files(tmp_path, b"ok\nna\xefve\n", b"gut\nnaiv\n")
    with pytest.raises(UserError, match=r"a\.en, line 2 .*UTF-8"):
        list(lines.pairs(*both))
    assert list(lines.pairs(*both, errors="replace"))[1] == ("na\ufffdve", "naiv")

import bz2
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from mlbench.config.errors import UserError
from mlbench.tasks.logreg import libsvm

TEXT = b"""\
+1 3:0.5 7:-1e-3 \r
# a comment, and an empty line

-1 # nothing but a label
1\t1:.25\t2:+4.  9:1E+2# end
-1 1000000:1"""


def write(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


def rows_of(path: Path) -> list[tuple[int, float, dict[int, float]]]:
    """Return line, label and entries of every row of a file."""
    return [
        (block.line(row), label, dict(zip(entries.indices.tolist(), entries.data.tolist(), strict=True)))
        for block in libsvm.read(path)
        for row, label in enumerate(block.labels.tolist())
        for entries in [block.entries[[row]]]
    ]


@pytest.fixture(params=[8, 30, 16 << 20], ids=lambda size: f"blocks of {size} bytes")
def _block(request, monkeypatch):
    monkeypatch.setattr(libsvm, "BLOCK", request.param)


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("pack", [bytes, bz2.compress, gzip.compress], ids=["plain", "bz2", "gz"])
def test_all_that_the_format_allows_is_read(tmp_path, pack):
    suffix = {bytes: ".txt", bz2.compress: ".bz2", gzip.compress: ".gz"}[pack]
    assert rows_of(write(tmp_path / f"file{suffix}", pack(TEXT))) == [
        (1, 1, {3: 0.5, 7: -0.001}),
        (4, -1, {}),
        (5, 1, {1: 0.25, 2: 4, 9: 100}),
        (6, -1, {1_000_000: 1}),
    ]


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"<html>", "'<html>'"),
        (b"1 1:0.5 2", "'1 1:0.5 2'"),
        (b"1,0.5,0.25", "'1,0.5,0.25'"),
        (b"1 qid:3 1:0.5", "'1 qid:3 1:0.5'"),
        (b"1:0.5 2:0.25", "'1:0.5 2:0.25'"),
        (b"1 1:inf", "'1 1:inf'"),
        (b"1 1:-1e39", "'1 1:-1e39'"),
        (b"nan 1:1", "'nan 1:1'"),
        (b"1 1.5:1", "'1 1.5:1'"),
        (b"1 -1:1", "'1 -1:1'"),
        (b"1 99999999999999999999:1", "'1 99999999999999999999:1'"),
        (b"1 2:1 1:1", "'1 2:1 1:1'"),
        (b"1 4:1 4:1", "'1 4:1 4:1'"),
        (b"1 " + b"7" * 99, r"'1 7{58} \.\.\.'"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, bad, said):
    path = write(tmp_path / "rows.txt", b"# heading\n\n1 1:1\n" + bad + b"\n-1 1:1\n")
    with pytest.raises(UserError, match=f"rows.txt, line 4: {said} is") as error:
        list(libsvm.read(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", ["bz2", "gz"])
def test_a_truncated_archive_is_named(tmp_path, suffix):
    packed = (bz2.compress if suffix == "bz2" else gzip.compress)(TEXT * 1000)
    with pytest.raises(UserError, match=rf"rows.{suffix} is damaged"):
        list(libsvm.read(write(tmp_path / f"rows.{suffix}", packed[:-20])))
    with pytest.raises(UserError, match=rf"rows.{suffix} is damaged"):
        list(libsvm.read(write(tmp_path / f"rows.{suffix}", b"1 1:1\n")))


def test_an_archive_whose_content_cannot_be_unpacked_is_named(tmp_path):
    """Of gzip this is no OSError: a header, then a block of the reserved type 3 (RFC 1951)."""
    with pytest.raises(UserError, match="rows.gz is damaged"):
        list(libsvm.read(write(tmp_path / "rows.gz", gzip.compress(b"")[:10] + b"\xff" * 20)))


@pytest.mark.parametrize("text", [b"", b"\n\n# only words\n"])
def test_a_file_without_rows_is_refused(tmp_path, text):
    with pytest.raises(UserError, match="has no rows"):
        list(libsvm.read(write(tmp_path / "empty", text)))


@pytest.mark.slow
def test_a_large_file_is_read_in_bounded_memory(tmp_path):
    """A limit on the process's own memory, 64 MiB above its start, holds for 100 MB of text."""
    line = b"1 " + b" ".join(b"%d:0.123456" % i for i in range(1, 100)) + b"\n"
    write(tmp_path / "few", line)
    with (
        open(tmp_path / "rows.gz", "wb") as raw,
        gzip.GzipFile(mode="wb", fileobj=raw, compresslevel=1) as file,
    ):
        for _ in range(100):
            file.write(line * (1_000_000 // len(line)))
    code = f"""
import resource
from pathlib import Path
import pyarrow as pa
from mlbench.tasks.logreg import libsvm
pa.set_memory_pool(pa.system_memory_pool())
libsvm.BLOCK = 1 << 20
list(libsvm.read(Path({str(tmp_path / "few")!r})))  # its threads start
fields = dict(line.split(":") for line in open("/proc/self/status"))
limit = int(fields["VmData"].split()[0]) * 1024 + (64 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
print(sum(len(block.labels) for block in libsvm.read(Path({str(tmp_path / "rows.gz")!r}))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{100 * (1_000_000 // len(line))}\n", done.stderr

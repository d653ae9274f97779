import bz2
import gzip
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from mlbench.experiment.errors import UserError
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


def whole(path: Path) -> libsvm.Block:
    """Return all blocks of a file as one."""
    blocks = list(libsvm.read(path))
    counts = np.concatenate([np.diff(block.starts) for block in blocks])
    return libsvm.Block(
        labels=np.concatenate([block.labels for block in blocks]),
        lines=np.concatenate([block.lines for block in blocks]),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        columns=np.concatenate([block.columns for block in blocks]),
        values=np.concatenate([block.values for block in blocks]),
    )


@pytest.fixture(params=[8, 30, 16 << 20], ids=lambda size: f"blocks of {size} bytes")
def _block(request, monkeypatch):
    monkeypatch.setattr(libsvm, "BLOCK", request.param)


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("pack", [bytes, bz2.compress, gzip.compress], ids=["plain", "bz2", "gz"])
def test_all_that_the_format_allows_is_read(tmp_path, pack):
    suffix = {bytes: ".txt", bz2.compress: ".bz2", gzip.compress: ".gz"}[pack]
    found = whole(write(tmp_path / f"file{suffix}", pack(TEXT)))
    assert found.labels.tolist() == [1, -1, 1, -1]
    assert found.lines.tolist() == [1, 4, 5, 6]
    assert found.starts.tolist() == [0, 2, 2, 5, 6]
    assert found.columns.tolist() == [3, 7, 1, 2, 9, 1_000_000]
    assert found.values.tolist() == [0.5, -0.001, 0.25, 4, 100, 1]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from([-1.0, 1.0]),
            st.dictionaries(st.integers(0, 30), st.floats(-1e38, 1e38).filter(bool), max_size=8),
        ),
        min_size=1,
        max_size=12,
    ),
    zero_based=st.booleans(),
    block=st.integers(1, 400),
)
def test_the_reader_agrees_with_scikit_learn(tmp_path_factory, rows, zero_based, block):
    entries = [(i, column, value) for i, (_, row) in enumerate(rows) for column, value in row.items()]
    at, columns, values = zip(*entries, strict=True) if entries else ((), (), ())
    x = csr_matrix((values, (at, columns)), shape=(len(rows), 31), dtype=np.float64)
    text = io.BytesIO()
    dump_svmlight_file(x, [label for label, _ in rows], text, zero_based=zero_based)
    path = write(tmp_path_factory.mktemp("any") / "file", text.getvalue())
    text.seek(0)
    expected, labels = load_svmlight_file(text, n_features=31, zero_based=zero_based)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libsvm, "BLOCK", block)
        found = whole(path)
    assert found.labels.tolist() == labels.tolist()
    assert found.starts.tolist() == expected.indptr.tolist()
    assert (found.columns - (not zero_based)).tolist() == expected.indices.tolist()
    assert found.values.tolist() == expected.data.tolist()


def strict(text: bytes) -> list[tuple[float, dict[int, float]]]:
    """Read the format slowly, line by line; ValueError for what is not in it."""
    rows = []
    for line in text.split(b"\n"):
        words = re.split(rb"[\x00-\x20]+", line.partition(b"#")[0].strip(bytes(range(33))))
        if words == [b""]:
            continue
        label, row = number(words[0]), {}
        for word in words[1:]:
            index, value = word.split(b":")
            column = number(index)
            if column != int(column) or not 0 <= column <= 2**53 or (row and column <= max(row)):
                raise ValueError(f"index {index!r}")
            row[int(column)] = number(value)
        rows.append((label, row))
    return rows


def number(word: bytes) -> float:
    if not re.fullmatch(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", word) or abs(float(word)) > 3.4028235e38:
        raise ValueError(f"not a finite number: {word!r}")
    return float(word)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(
    lines=st.lists(
        st.lists(st.text("0123 :.-+eE#n\t\r\0x", max_size=6).map(str.encode), max_size=4).map(b" ".join),
        max_size=4,
    ),
    good=st.sampled_from([b"1 1:2", b"-1 1:0.5 3:4", b"+1"]),
)
@example([b"1 1 :2"], b"1")
@example([b"1 1:2:3 4"], b"1")
@example([b"1 1:2 5 3:4", b"1:2:3"], b"1")
@example([b"1 1::2"], b"1")
@example([b"1 1:1e999"], b"1")
@example([b"1 1:-1e39"], b"1")
@example([b"1 1:nan"], b"1")
@example([b"1 1.5:1"], b"1")
@example([b"1 2:1 2:1"], b"1")
@example([b"1 99999999999999999999:1"], b"1")
@example([b"1 +1:1"], b"1")
@example([b"1 -1:1"], b"1")
@example([b"1 1:2 3:"], b"1")
@example([b"1:"], b"1")
@example([b" ++1"], b"1")
@example([b" +1 1:++1"], b"1")
def test_what_is_not_in_the_format_is_refused_and_nothing_else(tmp_path_factory, lines, good):
    text = b"\n".join([good, *lines])
    path = write(tmp_path_factory.mktemp("any") / "file", text)
    try:
        expected = strict(text)
    except ValueError:
        with pytest.raises(UserError, match=r"file, line \d+: "):
            whole(path)
    else:
        found = whole(path)
        rows = [
            (label, dict(zip(found.columns[a:b].tolist(), found.values[a:b].tolist(), strict=True)))
            for label, a, b in zip(found.labels, found.starts, found.starts[1:], strict=False)
        ]
        assert rows == expected


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"<html>", r"'<html>' is not of the form"),
        (b"1 1:0.5 2", r"'1 1:0.5 2' is not of the form"),
        (b"1,0.5,0.25", r"'1,0.5,0.25' is not of the form"),
        (b"1 qid:3 1:0.5", r"'1 qid:3 1:0.5' is not of the form"),
        (b"1:0.5 2:0.25", r"'1:0.5 2:0.25' is not of the form"),
        (b"1 1:inf", r"'1 1:inf' is not of the form"),
        (b"1 2:1 1:1", r"index 1 is not a whole number above the one before it"),
        (b"1 4:1 4:1", r"index 4 is not a whole number above the one before it"),
        (b"1 " + b"7" * 99, r"'1 7{58} \.\.\.' is not of the form"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, bad, said):
    path = write(tmp_path / "rows.txt", b"# heading\n\n1 1:1\n" + bad + b"\n-1 1:1\n")
    with pytest.raises(UserError, match=f"rows.txt, line 4: {said}") as error:
        whole(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", ["bz2", "gz"])
def test_a_truncated_archive_is_named(tmp_path, suffix):
    packed = (bz2.compress if suffix == "bz2" else gzip.compress)(TEXT * 1000)
    with pytest.raises(UserError, match=rf"rows.{suffix} is damaged or truncated"):
        whole(write(tmp_path / f"rows.{suffix}", packed[:-20]))
    with pytest.raises(UserError, match=rf"rows.{suffix} is damaged or truncated"):
        whole(write(tmp_path / f"rows.{suffix}", b"1 1:1\n"))


@pytest.mark.parametrize("text", [b"", b"\n\n# only words\n"])
def test_a_file_without_rows_is_refused(tmp_path, text):
    with pytest.raises(UserError, match="has no rows"):
        list(libsvm.read(write(tmp_path / "empty", text)))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        list(libsvm.read(tmp_path / "nothing"))


def test_progress_counts_the_bytes_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(libsvm, "BLOCK", 10_000)
    path = write(tmp_path / "rows.bz2", bz2.compress(b"1 1:0.5 2:0.25\n" * 10_000))
    seen = []
    list(libsvm.read(path, progress=lambda done, total: seen.append((done, total))))
    size = path.stat().st_size
    assert seen == sorted(seen) and seen[-1] == (size, size) and len(seen) > 10


def test_dense_rows_come_in_parts_of_bounded_size(tmp_path):
    path = write(tmp_path / "rows", b"".join(b"%d %d:1\n" % (i % 2, i + 1) for i in range(100)))
    [block] = libsvm.read(path)
    parts = list(block.dense(1_000_000, first=1))
    assert len(parts) > 1 and all(rows.nbytes <= 64 << 20 for rows, _ in parts)
    assert np.concatenate([np.nonzero(rows)[1] for rows, _ in parts]).tolist() == list(range(100))
    assert np.concatenate([labels for _, labels in parts]).tolist() == [0, 1] * 50


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

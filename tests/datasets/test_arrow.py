import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlbench.config.errors import UserError
from mlbench.datasets import arrow

HEAD = {"name": "made up", "source": "this test", "licence": "CC0-1.0", "parameters": {"seed": 1}}
IMAGES = np.arange(5 * 3 * 4 * 4, dtype=np.uint8).reshape(5, 3, 4, 4)
LABELS = np.arange(5, dtype=np.int64)


def fill(writer: arrow.DatasetWriter) -> None:
    parts = (slice(0, 2), slice(2, 5))
    writer.write("train", (arrow.record_batch({"image": IMAGES[p], "label": LABELS[p]}) for p in parts))
    writer.write("test", [arrow.record_batch({"image": IMAGES[:1], "label": LABELS[:1]})])


def made(folder: Path, **changes: Any) -> Path:
    return arrow.write_dataset(folder, fill, manifest={**HEAD, **changes})


def run(code: str, **popen: Any) -> subprocess.Popen[str]:
    code = "from pathlib import Path\nfrom mlbench.datasets import arrow\n" + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen
    )


def is_mapped_from(address: int, path: Path) -> bool:
    """Say whether the kernel maps `address` of this process from the file `path`."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, *_, source = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if low <= address < high:
            return source == str(path)
    return False


# Reading


def test_batches_come_back_as_one_column_mapped_from_the_file(tmp_path):
    folder = made(tmp_path / "set")
    before = pa.total_allocated_bytes()
    table = arrow.read_split(folder, "train")
    images, labels = arrow.column(table, "image"), arrow.tensor(table, "label")
    assert pa.total_allocated_bytes() == before
    assert images.tolist() == IMAGES.tolist() and images.dtype == np.uint8
    assert labels.tolist() == LABELS.tolist() and labels.dtype == torch.int64
    file = folder / "train.arrow"
    for address in (images.ctypes.data, images[-1:].ctypes.data, labels.data_ptr()):
        assert is_mapped_from(address, file)
    assert np.shares_memory(images, arrow.column(table, "image")[1:3])
    assert arrow.tensor(table, "image")[1:3].data_ptr() == images[1:3].ctypes.data
    assert not images.flags.writeable


NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)


@given(
    rows=st.lists(st.tuples(NUMBERS, st.binary(max_size=6), st.text(max_size=4)), min_size=1, max_size=9),
    cuts=st.lists(st.integers(0, 9), max_size=3),
    kinds=st.sampled_from(
        [(pa.list_, pa.binary, pa.string), (pa.large_list, pa.large_binary, pa.large_string)]
    ),
)
def test_rows_of_any_length_come_back_however_they_were_cut(tmp_path_factory, rows, cuts, kinds):
    tokens, raw, text = zip(*rows, strict=True)
    list_of, binary, string = kinds
    whole = pa.record_batch(
        {
            "tokens": pa.array(tokens, list_of(pa.int32())),
            "bytes": pa.array(raw, binary()),
            "text": pa.array(text, string()),
            "pair": pa.array([[i, -i] for i in range(len(rows))], pa.list_(pa.int16(), 2)),
        }
    )
    edges = sorted({0, *cuts, len(rows)})
    batches = [whole.slice(a, b - a) for a, b in zip(edges, edges[1:], strict=False) if a < len(rows)]
    folder = tmp_path_factory.mktemp("any") / "set"
    arrow.write_dataset(folder, lambda writer: writer.write("all", batches), manifest=HEAD)
    table = arrow.read_split(folder, "all")
    assert table.to_pydict() == whole.to_pydict()
    assert arrow.column(table, "pair").tolist() == [[i, -i] for i in range(len(rows))]
    for name, expected in (("tokens", tokens), ("bytes", raw)):
        values, offsets = arrow.list_column(table, name)
        result = [values[a:b].tolist() for a, b in zip(offsets, offsets[1:], strict=False)]
        assert result == [list(row) for row in expected]


def test_large_splits_are_written_in_bounded_memory(tmp_path):
    """A limit on the process's own memory, 48 MiB above its start, holds for 160 MB of rows."""
    process = run(
        f"""
        import resource
        import numpy as np
        import pandas  # pyarrow imports it late, and compiles it where no bytecode was installed
        import pyarrow as pa
        pa.set_memory_pool(pa.system_memory_pool())
        def fill(writer):
            rows = np.ones((4096, 1000), np.float32)
            writer.write("all", (arrow.record_batch({{"x": rows}}) for _ in range(10)))
        fields = dict(line.split(":") for line in open("/proc/self/status"))
        limit = int(fields["VmData"].split()[0]) * 1024 + (48 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        folder = arrow.write_dataset(Path({str(tmp_path / "set")!r}), fill, manifest={{}})
        print(arrow.column(arrow.read_split(folder, "all"), "x").shape)
        try:
            bytearray(64 << 20)
        except MemoryError:
            print("the limit holds")
        """
    )
    out, err = process.communicate()
    assert out == "(40960, 1000)\nthe limit holds\n", err


# Writing


def test_the_manifest_says_where_the_data_come_from_and_nothing_of_when_or_where(tmp_path):
    (tmp_path / "source.txt").write_text("content")

    def fill_from_file(writer: arrow.DatasetWriter) -> None:
        writer.add_input(tmp_path / "source.txt")
        writer.extra["mean"] = 0.5
        fill(writer)

    first = arrow.write_dataset(tmp_path / "one", fill_from_file, manifest=HEAD)
    second = arrow.write_dataset(tmp_path / "two", fill_from_file, manifest=HEAD)
    assert (first / "manifest.json").read_bytes() == (second / "manifest.json").read_bytes()
    manifest = json.loads((first / "manifest.json").read_text())
    sha256 = subprocess.run(["sha256sum", first / "train.arrow"], capture_output=True, text=True)
    assert manifest == {
        "format": 1,
        **HEAD,
        "mean": 0.5,
        "mlbench": manifest["mlbench"],
        "inputs": [
            {
                "file": "source.txt",
                "bytes": 7,
                "sha256": "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73",
            }
        ],
        "splits": {
            "train": {
                "file": "train.arrow",
                "rows": 5,
                "bytes": (first / "train.arrow").stat().st_size,
                "sha256": sha256.stdout.split()[0],
            },
            "test": manifest["splits"]["test"],
        },
    }
    assert {path.name for path in first.iterdir()} == {
        "croissant.json", "manifest.json", "test.arrow", "train.arrow",
    }  # fmt: skip


def test_the_short_hash_tells_data_apart_but_not_versions_of_mlbench(tmp_path, monkeypatch):
    first, other = made(tmp_path / "one"), made(tmp_path / "other", parameters={"seed": 2})
    monkeypatch.setattr("mlbench.__version__", "9.9.9")
    same = made(tmp_path / "same")
    assert re.fullmatch("[0-9a-f]{16}", arrow.manifest_hash(first))
    assert arrow.manifest_hash(first) == arrow.manifest_hash(same) != arrow.manifest_hash(other)


def test_a_data_set_that_is_there_is_not_touched(tmp_path):
    folder = made(tmp_path / "set")
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}
    made(folder)
    assert {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]} == before


@pytest.mark.parametrize("change", ["parameters", "format", "damaged manifest", "debris"])
def test_a_data_set_that_is_not_the_wanted_one_is_made_anew(tmp_path, change):
    folder = tmp_path / "set"
    if change == "parameters":
        made(folder, parameters={"seed": 7})
    elif change == "debris":
        folder.mkdir()
        (folder / "train.arrow").write_bytes(b"half")
    else:
        text = (made(folder) / "manifest.json").read_text()
        text = text.replace('"format": 1', '"format": 0') if change == "format" else text[:-20]
        (folder / "manifest.json").write_text(text)
    made(folder)
    assert arrow.verify(folder)["parameters"] == {"seed": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".set.lock", "set"]


def test_an_error_on_the_way_leaves_nothing(tmp_path):
    def fails(writer: arrow.DatasetWriter) -> None:
        fill(writer)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        arrow.write_dataset(tmp_path / "set", fails, manifest=HEAD)
    assert [path.name for path in tmp_path.iterdir()] == [".set.lock"]


def test_a_killed_process_leaves_no_data_set_and_the_next_one_succeeds(tmp_path, as_stored: Any):
    process = run(
        f"""
        import time
        import numpy as np
        def fill(writer):
            writer.write("train", [arrow.record_batch({{"x": np.arange(9)}})])
            print("half", flush=True)
            time.sleep(60)
        arrow.write_dataset(Path({str(tmp_path / "set")!r}), fill, manifest={HEAD!r})
        """
    )
    assert process.stdout and process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / ".set.partial" / "train.arrow").exists()
    assert not (tmp_path / "set").exists()
    with pytest.raises(UserError, check=as_stored):
        arrow.read_split(tmp_path / "set", "train")
    made(tmp_path / "set")
    assert arrow.verify(tmp_path / "set")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".set.lock", "set"]


@pytest.mark.slow
def test_of_several_processes_one_writes_and_all_read(tmp_path):
    code = f"""
        import sys
        import numpy as np
        def fill(writer):
            with open({str(tmp_path / "fills")!r}, "a") as file:
                file.write("x")
            for _ in range(20):
                writer.write("train", (arrow.record_batch({{"x": np.arange(1000)}}) for _ in range(20)))
        print("ready", flush=True)
        sys.stdin.readline()
        folder = arrow.write_dataset(Path({str(tmp_path / "set")!r}), fill, manifest={HEAD!r})
        print(arrow.column(arrow.read_split(folder, "train"), "x").sum())
        """
    processes = [run(code, stdin=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [process.communicate() for process in processes]
    assert [out for out, _ in results] == ["9990000\n"] * 3, results
    assert (tmp_path / "fills").read_text() == "x"


def test_a_full_disk_is_an_error_that_names_the_folder(tmp_path):
    process = run(
        f"""
        import resource
        import numpy as np
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        def fill(writer):
            writer.write("train", (arrow.record_batch({{"x": np.zeros(100_000)}}) for _ in range(9)))
        arrow.write_dataset(Path({str(tmp_path / "set")!r}), fill, manifest={{}})
        """
    )
    _, err = process.communicate()
    assert f" {tmp_path / 'set'}: " in err
    assert "File too large" in err
    assert [path.name for path in tmp_path.iterdir()] == [".set.lock"]


def test_no_file_is_mapped_any_more_when_its_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS keeps a file that is in use under another name, and so its folder (Linux, fs/nfs/unlink.c)."""
    remove, mapped = shutil.rmtree, list[str]()

    def rmtree(path: Path, **options: Any) -> None:
        mapped.extend(line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert arrow.verify(made(tmp_path / "set"))["splits"]["train"]["rows"] == 5
    assert not mapped


# Checking


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip_the_footer(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-40:] = bytes(40)
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [flip_a_bit, flip_the_footer, truncate, Path.unlink])
def test_a_changed_file_is_named(tmp_path, harm):
    folder = made(tmp_path / "set")
    assert arrow.verify(folder)["splits"]["train"]["rows"] == 5
    harm(folder / "test.arrow")
    with pytest.raises(UserError, match=re.escape(f"{folder / 'test.arrow'} is damaged")) as error:
        arrow.verify(folder)
    assert f"task=NAME scale=SCALE data_root={tmp_path}" in error.value.hint
    if harm is not flip_a_bit:  # these cost nothing to see when the file is opened
        with pytest.raises(UserError, match="is damaged"):
            arrow.read_split(folder, "test")


def test_a_folder_that_is_no_data_set_is_refused(tmp_path, as_stored: Any):
    with pytest.raises(UserError, check=as_stored) as error:
        arrow.read_manifest(tmp_path)
    assert "mlbench data prepare" in error.value.hint
    for text in ("{", "[]", "null", '{"format": 1}', '{"format": 1, "splits": {"train": []}}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(UserError, match="manifest.json is damaged"):
            arrow.read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(UserError, match="format 99, .* 1"):
        arrow.read_manifest(tmp_path)


@pytest.mark.parametrize(("number", "kept"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_without_fsync_keeps_a_data_set_and_a_disk_that_fails_does_not(
    number: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    if kept:
        assert arrow.verify(made(tmp_path / "set"))["splits"]["train"]["rows"] == 5
    else:
        with pytest.raises(UserError, match="cannot prepare .*Input/output"):
            made(tmp_path / "set")

import hashlib
import io
import pickle
import struct
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mirror import serve
from sklearn.datasets import load_digits

from mlbench.datasets import arrow, download, torchvision_ops
from mlbench.datasets.download import Archive
from mlbench.experiment.errors import UserError
from mlbench.tasks.resnet20 import data
from mlbench.tasks.resnet20.cifar import read_batch

ORIGINALS: Any = load_digits()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(download, "PAUSES_S", ())


def wanting(dataset: str) -> SimpleNamespace:
    return SimpleNamespace(dataset=dataset)


# Digits


@pytest.fixture(scope="module")
def digits(data_root) -> data.Dataset:
    return data.open_dataset(data.prepare_dataset(wanting("digits"), data_root))


def test_every_digit_is_in_one_split_and_each_class_is_divided_four_to_one(digits):
    assert digits.train.images.shape == (1438, 3, 32, 32) and digits.train.images.dtype == torch.uint8
    assert digits.test.images.shape == (359, 3, 32, 32) and digits.test.labels.dtype == torch.int64
    train, test = digits.train.labels.bincount(), digits.test.labels.bincount()
    assert (train + test).tolist() == np.bincount(ORIGINALS.target).tolist()
    assert ((test / (train + test) - 0.2).abs() < 0.005).all()
    images = torch.cat([digits.train.images, digits.test.images])
    originals = {large(grey).numpy().tobytes() for grey in ORIGINALS.images}
    assert {image[0].numpy().tobytes() for image in images} == originals


def large(grey: np.ndarray) -> torch.Tensor:
    """Return an 8x8 image of 0..16 as 32x32 uint8 with torch's own interpolation; halves go up."""
    exact = F.interpolate(torch.tensor(grey)[None, None], size=32, mode="bilinear", align_corners=False)
    return (exact[0, 0] * 255 / 16 + 0.5).floor().to(torch.uint8)


def test_digits_are_enlarged_as_torch_does_it(digits):
    position = np.flatnonzero(ORIGINALS.target == 7)[2]  # the first seven of the test rows
    found = digits.test.images[digits.test.labels == 7][0]
    assert torch.equal(found, large(ORIGINALS.images[position]).expand(3, 32, 32))


def test_mean_and_deviation_are_those_of_the_training_pixels(digits):
    pixels = digits.train.images.double().transpose(0, 1).flatten(1) / 255
    assert torch.allclose(digits.mean.double(), pixels.mean(1), atol=1e-6)
    assert torch.allclose(digits.std.double(), pixels.std(1, correction=0), atol=1e-6)


def test_digits_are_never_mirrored_and_photographs_are(digits):
    assert digits.flip is False
    assert data.CIFAR10["parameters"]["flip"] is True


def test_a_second_preparation_touches_nothing(data_root, digits):
    folder = data_root / "digits"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert data.prepare_dataset(wanting("digits"), data_root) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


# CIFAR-10


class Global(str):
    """A name that a pickle loads, as "module name"."""


def python2_pickle(value: Any) -> bytes:
    """Pickle as Python 2 did for CIFAR-10: protocol 2, byte strings, numpy's old module names."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return b"J" + struct.pack("<i", value)
        case Global():
            return f"c{value.replace(' ', chr(10))}\n".encode()
        case bytes():
            return b"T" + struct.pack("<i", len(value)) + value
        case tuple():
            return b"(" + b"".join(map(_opcodes, value)) + b"t"
        case list():
            return b"](" + b"".join(map(_opcodes, value)) + b"e"
        case dict():
            return b"}(" + b"".join(_opcodes(part) for item in value.items() for part in item) + b"u"
        case np.ndarray():
            made = Global("numpy.core.multiarray _reconstruct")
            empty = (Global("numpy ndarray"), (0,), b"b")
            kind = _opcodes(Global("numpy dtype")) + _opcodes((value.dtype.str[1:].encode(), 0, 1)) + b"R"
            kind += _opcodes((3, b"|", None, None, None, -1, -1, 0)) + b"b"
            state = b"(" + _opcodes(1) + _opcodes(value.shape) + kind + _opcodes(False)
            state += _opcodes(value.tobytes()) + b"t"
            return _opcodes(made) + _opcodes(empty) + b"R" + state + b"b"
    raise TypeError(type(value))


def batch(rows: int, seed: int) -> tuple[np.ndarray, list[int]]:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (rows, 3072), dtype=np.uint8)
    return pixels, random.integers(0, 10, rows).tolist()


BATCHES = {f"data_batch_{number}": batch(4, number) for number in range(1, 6)} | {"test_batch": batch(3, 9)}
MEMBERS = {
    name: python2_pickle(
        {
            b"batch_label": b"a batch",
            b"labels": labels,
            b"data": pixels,
            b"filenames": [b"a.png"] * len(labels),
        }
    )
    for name, (pixels, labels) in BATCHES.items()
}


def tar(members: dict[str, bytes], folder: str = "cifar-10-batches-py/") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in {"readme.html": b"<html>", **members}.items():
            entry = tarfile.TarInfo(folder + name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def small_cifar10(monkeypatch, packed: bytes, members: dict[str, bytes], urls: tuple[str, ...] = ()) -> None:
    """Let the data set `cifar10` be the archive `packed` with `members`."""
    name = "cifar-10-python.tar.gz"
    sums = {"sha256": hashlib.sha256(packed).hexdigest(), "md5": hashlib.md5(packed).hexdigest()}
    archive = Archive(tuple(url + name for url in urls), name, **sums, size=len(packed))
    monkeypatch.setattr(data, "CIFAR10_ARCHIVE", archive)
    batches = {
        split: {name: hashlib.md5(members[name]).hexdigest() for name in names if name in members}
        for split, names in data.CIFAR10_BATCHES.items()
    }
    monkeypatch.setattr(data, "CIFAR10_BATCHES", batches)


def lay_down(root: Path, packed: bytes) -> None:
    (root / "downloads").mkdir()
    (root / "downloads" / "cifar-10-python.tar.gz").write_bytes(packed)


def test_cifar10_is_fetched_unpacked_and_opened(tmp_path, monkeypatch):
    packed = tar(MEMBERS)
    with serve() as mirror:
        mirror.files = {"cifar-10-python.tar.gz": packed}
        small_cifar10(monkeypatch, packed, MEMBERS, ("http://127.0.0.1:9/", mirror.url))
        folder = data.prepare_dataset(wanting("cifar10"), tmp_path)
        again = data.prepare_dataset(wanting("cifar10"), tmp_path)
        assert again == folder and len(mirror.requests) == 1
    found = data.open_dataset(folder)
    names = [f"data_batch_{number}" for number in range(1, 6)]
    pixels = np.concatenate([BATCHES[name][0] for name in names])
    assert found.train.images.tolist() == pixels.reshape(20, 3, 32, 32).tolist()
    assert found.train.labels.tolist() == sum((BATCHES[name][1] for name in names), [])
    assert found.test.images.tolist() == BATCHES["test_batch"][0].reshape(3, 3, 32, 32).tolist()
    assert found.test.labels.tolist() == BATCHES["test_batch"][1]
    assert found.flip is True
    assert arrow.verify(folder)["inputs"][0]["sha256"] == hashlib.sha256(packed).hexdigest()
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "test.arrow", "train.arrow"]


def test_an_archive_that_is_there_needs_no_network(tmp_path, monkeypatch):
    packed = tar(MEMBERS)
    lay_down(tmp_path, packed)
    small_cifar10(monkeypatch, packed, MEMBERS)
    assert len(data.open_dataset(data.prepare_dataset(wanting("cifar10"), tmp_path)).test.labels) == 3


class Sentinel:
    """Its pickle writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "ran"))


def test_a_pickle_that_wants_to_run_code_is_refused_even_with_the_right_checksum(tmp_path, monkeypatch):
    members = MEMBERS | {"data_batch_2": pickle.dumps({"data": Sentinel(tmp_path / "ran"), "labels": []})}
    pickle.loads(members["data_batch_2"])
    assert (tmp_path / "ran").exists()  # the attack is real
    (tmp_path / "ran").unlink()
    small_cifar10(monkeypatch, tar(members), members)
    lay_down(tmp_path, tar(members))
    with pytest.raises(
        UserError, match="data_batch_2 is not a batch of CIFAR images: it wants to load pathlib"
    ):
        data.prepare_dataset(wanting("cifar10"), tmp_path)
    assert not (tmp_path / "ran").exists() and not (tmp_path / "cifar10").exists()


def without(name: str) -> dict[str, bytes]:
    return {other: content for other, content in MEMBERS.items() if other != name}


SHORT = python2_pickle({b"data": BATCHES["test_batch"][0][:, :-1], b"labels": [1, 2, 3]})
FLOATS = python2_pickle({b"data": np.zeros((3, 3072), np.float32), b"labels": [1, 2, 3]})


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (tar(without("test_batch")), "the archive has no test_batch"),
        (tar(MEMBERS | {"test_batch": MEMBERS["data_batch_1"]}), "test_batch in the archive has MD5"),
        (tar(MEMBERS)[:-100], "is damaged or truncated"),
        (tar(MEMBERS, folder="../cifar-10-batches-py/"), "leads out of its folder"),
    ],
    ids=["member missing", "member changed", "truncated", "traversal"],
)
def test_a_broken_archive_is_refused_and_leaves_no_data_set(tmp_path, monkeypatch, packed, said):
    small_cifar10(monkeypatch, packed, MEMBERS)
    lay_down(tmp_path, packed)
    with pytest.raises(UserError, match=said):
        data.prepare_dataset(wanting("cifar10"), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cifar10.lock", "downloads"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (SHORT, r"its data are uint8 \(3, 3071\) for 3 labels"),
        (FLOATS, r"its data are float32 \(3, 3072\) for 3 labels"),
        (python2_pickle({b"labels": []}), "'data'"),
        (python2_pickle([1]), "list indices"),
        (MEMBERS["test_batch"][:-10], "truncated"),
        (b"<html>", ""),
    ],
    ids=["short rows", "floats", "no data", "no dict", "cut", "no pickle"],
)
def test_a_file_that_is_no_batch_is_refused(tmp_path, content, said):
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(UserError, match=f"batch is not a batch of CIFAR images: .*{said}"):
        read_batch(tmp_path / "batch", md5=hashlib.md5(content).hexdigest())


def test_pickles_of_todays_numpy_are_read_too(tmp_path):
    pixels, labels = BATCHES["test_batch"]
    content = pickle.dumps({"data": pixels, "labels": labels}, protocol=4)
    (tmp_path / "batch").write_bytes(content)
    images, found = read_batch(tmp_path / "batch", md5=hashlib.md5(content).hexdigest())
    assert images.reshape(3, 3072).tolist() == pixels.tolist() and found.tolist() == labels


@pytest.mark.parametrize("damage", ["wrong checksum", "truncated"])
def test_a_mirror_that_sends_something_else_is_refused(tmp_path, monkeypatch, damage):
    packed = tar(MEMBERS)
    with serve() as mirror:
        sent = packed[:-1] if damage == "truncated" else packed[:-1] + b"\xff"
        mirror.files = {"cifar-10-python.tar.gz": sent}
        small_cifar10(monkeypatch, packed, MEMBERS, (mirror.url,))
        with pytest.raises(UserError, match="cannot be fetched: .* instead of"):
            data.prepare_dataset(wanting("cifar10"), tmp_path)
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == [".cifar-10-python.tar.gz.lock"]


def test_the_published_checksums_are_those_of_torchvision():
    official = torchvision_ops.load().datasets.CIFAR10
    assert official.tgz_md5 == data.CIFAR10_ARCHIVE.md5
    assert official.url in data.CIFAR10_ARCHIVE.urls
    assert official.filename == data.CIFAR10_ARCHIVE.file
    assert dict(official.train_list) == data.CIFAR10_BATCHES["train"]
    assert dict(official.test_list) == data.CIFAR10_BATCHES["test"]
